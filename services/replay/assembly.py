"""Puts a replay partition together and takes it down again."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from headrace.clients.directory import ShardMembership
from headrace.clients.joining import AccountReporter
from headrace.cold_accounts import ColdAccounts
from headrace.config.choices import most_samplers
from headrace.config.digest import config_json
from headrace.config.process import ProcessConfig
from headrace.envs.factory import probe
from headrace.events import EventLog
from headrace.metrics import start_metrics_server
from headrace.registry import announce
from headrace.replay.members import ShardIdentity, ShardStatus
from headrace.rpc.drain import Drain
from headrace.rpc.entry import Ready
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import RunningServer, serve, split_address
from services.replay import cold_tier
from services.replay.cold_tier import ColdTier
from services.replay.config import ColdSettings
from services.replay.directory_servicer import SERVICE as DIRECTORY_SERVICE
from services.replay.directory_servicer import DirectoryEndpoint
from services.replay.metrics import ReplayMetrics

_GRACE_S = 2.0
_LEAVE_S = 2.0
_TICK_S = 0.1
_STREAMS_PER_SAMPLER = 3  # sink, membership, and one that the server hasn't noticed to be dead


class Replay:
    """A replay partition that serves, in this process. The first one has the directory."""

    def __init__(self, process: ProcessConfig, *, metrics: ReplayMetrics, events: EventLog) -> None:
        """Serve. ConfigurationError: no Redis where one is required, or the port is taken."""
        config = process.config
        spec = probe(config.environment)
        self._metrics = metrics
        self._events = events
        handshake = Handshake(
            run_id=process.run_id,
            config_digest=process.config_digest,
            space_specification=spec.to_json(),
            peer=process.name,
            config_json=config_json(config),
        )
        settings = ColdSettings.from_process(process, spec)
        self.cold = None if settings is None else ColdTier(settings, handshake, on_event=events.emit)
        self._directory = (
            DirectoryEndpoint(config, handshake, run_dir=process.run_dir, metrics=metrics)
            if process.index == 0
            else None
        )
        names = () if self.cold is None else cold_tier.SERVICE_NAMES
        try:
            self.server: RunningServer = serve(
                address=process.listen,
                handlers=[] if self.cold is None else self.cold.handlers(),
                register=[] if self._directory is None else [self._directory.register],
                service_names=names if self._directory is None else (*names, DIRECTORY_SERVICE),
                max_streams=_STREAMS_PER_SAMPLER * most_samplers(config) + 16,
                setting="replay.partitions",
            )
        except BaseException:
            if self._directory is not None:
                self._directory.close()
            raise
        self._reporter = self._report(process, handshake)
        self._membership: ShardMembership | None = None
        if self.cold is not None:
            self.cold.start()
            self._membership = self._join(process, handshake)

    def on_time(self) -> None:
        """Tell the directory and the metrics how the cold tier stands. HeadraceError: it has failed."""
        if self.cold is None:
            return
        if self.cold.sink.fatal is not None:
            raise self.cold.sink.fatal
        self.cold.observe(self._metrics)
        stats = self.cold.shard.stats()
        if self._membership is not None and self.cold.ready.is_set():
            self._membership.report(
                ShardStatus(
                    mass=stats.mass,
                    count=stats.count,
                    drawn=stats.drawn,
                    newest_version=stats.newest_version,
                    fill_ratio=stats.fill_ratio,
                )
            )

    def close(self) -> None:
        """Take no more calls, write what was received, leave the directory, save it."""
        self.server.set_serving(False)
        if self.cold is not None:
            self.cold.stop()
        if self._membership is not None:
            self._membership.leave("drain", _LEAVE_S)
        if self._directory is not None:
            self._directory.close()
        self.server.stop(_GRACE_S)
        if self._reporter is not None:
            self._reporter.close(_LEAVE_S)

    def _report(self, process: ProcessConfig, handshake: Handshake) -> AccountReporter | None:
        """Whoever lingers has a folder of its own: the paramserver doesn't see the accounts in it."""
        run_dir = process.run_dir
        if not process.linger or run_dir is None or self.cold is None:
            return None
        accounts = ColdAccounts(run_dir, process.index)
        reporter = AccountReporter(
            process.paramserver,
            handshake,
            name=process.name,
            cold=lambda: list(accounts.read().items()),
            partition=process.index,
            on_event=lambda kind, sentence: self._events.emit(kind, reason=sentence),
        )
        reporter.start()
        return reporter

    def _join(self, process: ProcessConfig, handshake: Handshake) -> ShardMembership:
        replay = process.config.replay
        membership = ShardMembership(
            process.replay[0] if process.index else self.server.address,
            handshake,
            ShardIdentity(process.name, process.reached_at(self.server.address), "cold"),
            rebalance_every=replay.rebalance_every,
            rebalance_drift=replay.rebalance_drift,
            outage_s=replay.outage_s,
            on_event=lambda kind, sentence: self._events.emit(kind, reason=sentence),
        )
        membership.start()
        return membership


def run_replay(process: ProcessConfig, drain: Drain, ready: Ready) -> None:
    """Serve until told to drain."""
    metrics = ReplayMetrics(CollectorRegistry())
    metrics.identify(process.config_digest)
    host, _port = split_address(process.listen)
    metrics_port = start_metrics_server(host, process.metrics_port, metrics.registry)
    replay = Replay(process, metrics=metrics, events=EventLog(process.run_dir, process.name))
    announce(
        process.run_dir, "replay", process.index, address=replay.server.address, metrics_port=metrics_port
    )
    ready()
    try:
        while not drain.wait(_TICK_S):
            replay.on_time()
    finally:
        replay.close()
