"""Puts a sampler or an evaluator together from its parts, and takes it apart in order."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client import CollectorRegistry

from headrace import logs
from headrace.accounts import AccountFile, claim, next_incarnation, read_accounts
from headrace.clients.fragments import FragmentSender
from headrace.clients.joining import AccountReporter, Seat, join_run
from headrace.clients.parameters import SnapshotWatcher
from headrace.clients.run import RunClient
from headrace.config.checks import fragment_bytes
from headrace.config.choices import is_off_policy
from headrace.config.digest import config_json
from headrace.config.process import ProcessConfig
from headrace.envs.factory import probe
from headrace.envs.lanes import Discard, Lanes
from headrace.envs.spec import EnvironmentSpec
from headrace.errors import BeginAgainError
from headrace.events import EventLog
from headrace.flow.ledger import SamplerAccount
from headrace.metrics import ServiceMetrics, start_metrics_server
from headrace.nets.actor import make_actor
from headrace.quarantine import QuarantineStore
from headrace.registry import announce
from headrace.rollout import Rollout
from headrace.rpc.drain import Drain
from headrace.rpc.entry import Ready
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import split_address
from headrace.types import SamplerIdentity
from services.sampler.acting import Acting
from services.sampler.core import Sampler
from services.sampler.evaluator import Evaluator
from services.sampler.metrics import EvaluatorMetrics, SamplerMetrics
from services.sampler.watchdog import Watchdog

if TYPE_CHECKING:
    from services.sampler.replaying import ReplaySampler

_EVALUATOR_NICENESS = 10  # where cores are few, whoever trains goes first
_LAST_REPORT_S = 5.0  # that the last report may take
EVALUATION_SPAWN_KEY = 2**31  # evaluators draw their seeds apart from every sampler


@dataclass(frozen=True, slots=True)
class _Common:
    """What both kinds need."""

    process: ProcessConfig
    spec: EnvironmentSpec
    handshake: Handshake
    events: EventLog
    watcher: SnapshotWatcher

    def log_event(self, kind: str, sentence: str) -> None:
        """For clients, which report ``(kind, sentence)``."""
        self.events.emit(kind, reason=sentence)


def run_sampler(process: ProcessConfig, drain: Drain, ready: Ready) -> None:
    """Sample until SIGTERM or the end of the run, then drain. BeginAgainError: its place was taken away."""
    common = _common(process)
    common, identity, seat = _take_place(common, drain)
    process = common.process
    account = AccountFile.create(process.run_dir, identity)
    reporter = None if seat is None else _report(common, seat, account)
    metrics = SamplerMetrics(CollectorRegistry())

    def stopping() -> bool:
        unseated = reporter is not None and bool(reporter.unseated)
        return drain.requested or unseated or common.watcher.run_state().ended

    lanes, acting = _acting(common, identity, account, metrics, stopping)
    watchdog = Watchdog(
        lambda: lanes.heartbeat,
        timeout_s=process.config.environment.step_timeout_s,
        on_hang=lambda seconds: common.events.emit(
            "environment_hung", reason=f"a step has not returned for {seconds:.0f} s; the sampler ends"
        ),
    )
    with ExitStack() as closing:
        if reporter is not None:
            closing.callback(reporter.close, _LAST_REPORT_S)
        if is_off_policy(process.config):
            # Only here: replay brings numba along, which takes a second and memory.
            from services.sampler.replay_assembly import open_replay

            sampler: Sampler | ReplaySampler = open_replay(
                process, common.spec, common.handshake, identity, acting, closing, common.log_event
            )
        else:
            sampler = _open_stream(common, acting, identity, closing)
        _serve_metrics(process, metrics)
        common.watcher.start()
        closing.callback(common.watcher.stop)
        closing.callback(lanes.close)
        watchdog.start()
        closing.callback(watchdog.stop)
        ready()
        sampler.run()
        ended = common.watcher.run_state().ended
        # Once the run is over nothing more is learned from: the goodbye need not wait for settlement.
        patience_s = 0.5 if ended and isinstance(sampler, Sampler) else process.config.sampler.drain_s
        reason = drain.reason or ("run ended" if ended else "another learner")
        sampler.leave(reason=reason, deadline_s=patience_s)
        if reporter is not None:
            reporter.close(_LAST_REPORT_S)
            if reporter.unseated and not ended:
                raise BeginAgainError(reporter.unseated)
        _wait_for(drain)


def _take_place(common: _Common, drain: Drain) -> tuple[_Common, SamplerIdentity, Seat | None]:
    """Who this sampler is: by the number that it was started with, or as the paramserver says."""
    process = common.process
    if process.is_placed:
        identity = SamplerIdentity(process.name, next_incarnation(process.run_dir, process.name))
        return common, identity, None
    seat = join_run(
        process.paramserver,
        common.handshake,
        name=process.pod or socket.gethostname(),
        instance=uuid.uuid4().hex,
        wait=drain.wait,
        on_event=common.log_event,
    )
    claim(process.run_dir, seat.identity)
    process = process.placed(seat.index, seat.learner)
    logs.configure(process.kind, process.index, process.run_dir, process.config_digest, pod=process.pod)
    common.events.emit("joined", sampler=str(seat.identity), learner=seat.learner)
    return replace(common, process=process), seat.identity, seat


def _report(common: _Common, seat: Seat, account: AccountFile) -> AccountReporter:
    """Keep the place, and the paramserver's books about this sampler."""
    process = common.process
    left = []  # by earlier processes in this folder, as when the container was started again
    if process.run_dir is not None:
        left = [found for found in read_accounts(process.run_dir) if found.sampler != seat.identity]

    def accounts() -> list[SamplerAccount]:
        return [account.account(), *([] if reporter.num_told else left)]

    reporter = AccountReporter(
        process.paramserver,
        common.handshake,
        name=seat.name,
        seat=seat,
        samplers=accounts,
        on_event=common.log_event,
    )
    reporter.start()
    return reporter


def _acting(
    common: _Common,
    identity: SamplerIdentity,
    account: AccountFile,
    metrics: SamplerMetrics,
    stopping: Callable[[], bool],
) -> tuple[Lanes, Acting]:
    process, config = common.process, common.process.config
    lane_seeds, action_seeds = np.random.SeedSequence(
        config.run.seed, spawn_key=(process.index, identity.incarnation)
    ).spawn(2)
    lanes = Lanes(
        config.environment,
        config.validation,
        spec=common.spec,
        num_lanes=config.environment.lanes,
        seed_sequence=lane_seeds,
        max_consecutive_faults=config.sampler.max_consecutive_faults,
        restart_backoff_s=config.sampler.restart_backoff_s,
        clock=time.monotonic,
    )
    quarantine = QuarantineStore(process.run_dir, process.name, config.validation.quarantine_max)
    actor = make_actor(config, common.spec, sampler_index=process.index)
    rollout = Rollout(
        lanes=lanes,
        actor=actor,
        spec=common.spec,
        sampler=identity,
        fragment_length=config.sampler.fragment_length,
        config_digest=process.config_digest,
        rng=np.random.default_rng(action_seeds),
        normalize_observation=config.policy.normalize_observation,
        on_discard=lambda discard: _quarantine(quarantine, identity, config.environment.id, discard),
        on_step=lambda seconds: acting.on_step(seconds),
    )
    acting = Acting(
        rollout=rollout,
        actor=actor,
        snapshots=common.watcher,
        account=account,
        metrics=metrics,
        stopping=stopping,
        restarts=lambda: lanes.restarts,
    )
    return lanes, acting


def _open_stream(common: _Common, acting: Acting, identity: SamplerIdentity, closing: ExitStack) -> Sampler:
    """The way to the learner."""
    process, config = common.process, common.process.config
    sender = FragmentSender(
        process.learner,
        common.handshake,
        identity,
        fragment_bytes=fragment_bytes(config, common.spec),
        fragment_transitions=config.environment.lanes * config.sampler.fragment_length,
        codec=config.stream.codec,
        message_bytes=config.stream.message_bytes,
        clock=time.monotonic,
        on_event=common.log_event,
    )
    sender.start()
    closing.callback(sender.close)
    return Sampler(acting, sender)


def run_evaluator(process: ProcessConfig, drain: Drain, ready: Ready) -> None:
    """Evaluate until SIGTERM, or until the run has ended and its last version is evaluated."""
    os.nice(_EVALUATOR_NICENESS)
    config = process.config
    common = _common(process)
    metrics = EvaluatorMetrics(CollectorRegistry())
    seeds = np.random.SeedSequence(config.run.seed, spawn_key=(EVALUATION_SPAWN_KEY, process.index))
    actor = make_actor(config, common.spec)
    rng = np.random.default_rng(seeds.spawn(1)[0])
    run = RunClient(process.paramserver, common.handshake, wait=drain.wait)

    def make_lanes() -> Lanes:
        return Lanes(
            config.environment,
            config.validation,
            spec=common.spec,
            num_lanes=min(config.evaluation.lanes, config.evaluation.episodes),
            seed_sequence=seeds.spawn(1)[0],
            max_consecutive_faults=config.sampler.max_consecutive_faults,
            restart_backoff_s=config.sampler.restart_backoff_s,
            clock=time.monotonic,
        )

    evaluator = Evaluator(
        config=config.evaluation,
        make_lanes=make_lanes,
        actor=actor,
        choose=actor.greedy
        if config.evaluation.deterministic
        else lambda observation: actor.act(observation, rng).environment_action,
        snapshots=common.watcher,
        run=run,
        metrics=metrics,
        ended=lambda: common.watcher.run_state().ended,
        stopping=lambda: drain.requested,
        on_event=common.log_event,
    )
    _serve_metrics(process, metrics)
    common.watcher.start()
    ready()
    try:
        evaluator.run()
    finally:
        run.close()
        common.watcher.stop()
    if process.linger:
        _wait_for(drain)


def _wait_for(drain: Drain) -> None:
    """Whoever started the process also ends it: one that left by itself would be started again."""
    while not drain.wait(1.0):
        pass


def _common(process: ProcessConfig) -> _Common:
    spec = probe(process.config.environment)
    handshake = Handshake(
        run_id=process.run_id,
        config_digest=process.config_digest,
        space_specification=spec.to_json(),
        peer=process.name,
        config_json=config_json(process.config),
    )
    events = EventLog(process.run_dir, process.name)
    watcher = SnapshotWatcher(
        process.watch or process.paramserver,
        handshake,
        on_event=lambda kind, sentence: events.emit(kind, reason=sentence),
    )
    return _Common(process, spec, handshake, events, watcher)


def _serve_metrics(process: ProcessConfig, metrics: ServiceMetrics) -> None:
    metrics.identify(process.config_digest)
    host, _ = split_address(process.listen)
    port = start_metrics_server(host, process.metrics_port, metrics.registry)
    kind, index = process.name.rsplit("-", 1)
    announce(process.run_dir, kind, int(index), metrics_port=port)


def _quarantine(
    store: QuarantineStore, sampler: SamplerIdentity, environment_id: str, discard: Discard
) -> None:
    store.store(
        discard.reason,
        discard.detail,
        {
            "sampler": sampler.sampler_id,
            "incarnation": sampler.incarnation,
            "environment": environment_id,
            "lane": discard.lane,
            "seed": discard.seed,
            "episode": discard.episode,
            "step": discard.step,
        },
        {},
    )
