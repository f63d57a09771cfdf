"""Puts a parameter server together and takes it down again."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from headrace.config.choices import in_rounds
from headrace.config.process import ProcessConfig
from headrace.errors import RunFailedError
from headrace.events import EventLog
from headrace.metrics import start_metrics_server
from headrace.registry import announce
from headrace.rpc.drain import Drain
from headrace.rpc.entry import Ready
from headrace.rpc.server import RunningServer, serve, split_address
from services.paramserver.config import Settings
from services.paramserver.core import ParameterServer
from services.paramserver.membership import Membership
from services.paramserver.metrics import ParamserverMetrics
from services.paramserver.servicer import SERVICE_NAMES, ParameterServicer, RunServicer, registrations

if TYPE_CHECKING:
    from services.paramserver.rounds.gathering import Gathering

SAVE_S = 20.0
"""Seconds that the last checkpoint may take after SIGTERM."""

_SHORT_STREAMS = 8  # publishes and fetches under way, besides the watches
_GRACE_S = 2.0
_TICK_S = 0.5
_BOOKS_EVERY_S = 5.0


class Paramserver:
    """A parameter server that serves, in this process."""

    def __init__(
        self, settings: Settings, *, listen: str, name: str, events: EventLog, metrics: ParamserverMetrics
    ) -> None:
        """Recover and serve. ConfigurationError: the run's folder is in use, or the port is taken."""
        self.core = ParameterServer(settings, events=events, metrics=metrics)
        self._metrics = metrics
        self._books_due_at = 0.0
        self._draining = threading.Event()
        handshake = settings.handshake(name)
        self.membership = Membership(settings, restarted=self.core.epoch > 1)
        self.gathering = make_gathering(self.core, settings, events, metrics)
        parameters = ParameterServicer(
            self.core,
            handshake,
            max_watchers=settings.max_watchers,
            metrics=metrics,
            draining=self._draining.is_set,
            gathering=self.gathering,
        )
        run = RunServicer(self.core, self.membership, handshake)
        try:
            self.server: RunningServer = serve(
                address=listen,
                register=registrations(parameters, run),
                service_names=SERVICE_NAMES,
                max_streams=settings.max_watchers + settings.config.learner.count + _SHORT_STREAMS,
                setting="network.paramserver_port",
            )
        except BaseException:
            self.core.close(0.0)
            raise

    def on_time(self) -> None:
        """Time has passed: see whether the run has ended by it, and bring the books into the metrics."""
        self.core.on_time()
        now = time.monotonic()
        if now >= self._books_due_at:
            self._books_due_at = now + _BOOKS_EVERY_S
            members, ledger = self.membership.members(), self.membership.ledger(self.core.view())
            self._metrics.observe_books(len(members), ledger)

    def close(self) -> bool:
        """Take no more calls, save the newest version. False: it could not be saved in time."""
        self._draining.set()
        self.server.stop(_GRACE_S)
        self.membership.close()
        return self.core.close(SAVE_S)


def make_gathering(
    core: ParameterServer, settings: Settings, events: EventLog, metrics: ParamserverMetrics
) -> Gathering | None:
    """Where learners meet, if this run's hand their work in to rounds."""
    if not in_rounds(settings.config):
        return None
    # torch is loaded only where rounds need it: it would double this process's memory.
    from services.paramserver.rounds.gathering import Gathering

    return Gathering(core, settings.config, events=events, metrics=metrics)


def run_paramserver(process: ProcessConfig, drain: Drain, ready: Ready) -> None:
    """Serve until told to drain, then save. RunFailedError: the last version could not be saved."""
    metrics = ParamserverMetrics(CollectorRegistry())
    metrics.identify(process.config_digest)
    host, _port = split_address(process.listen)
    port = start_metrics_server(host, process.metrics_port, metrics.registry)
    paramserver = Paramserver(
        Settings.from_process(process),
        listen=process.listen,
        name=process.name,
        events=EventLog(process.run_dir, process.name),
        metrics=metrics,
    )
    address = paramserver.server.address
    announce(process.run_dir, process.service, process.index, address=address, metrics_port=port)
    ready()
    while not drain.wait(_TICK_S):
        paramserver.on_time()
    if not paramserver.close():
        reason = paramserver.core.view().checkpoint_problem or f"it took longer than {SAVE_S:.0f} s"
        raise RunFailedError(f"the last version could not be saved: {reason}")
