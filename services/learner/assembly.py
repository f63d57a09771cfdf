"""Puts a learner together from its parts, and takes it apart in order."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from prometheus_client import CollectorRegistry

from headrace.clients.directory import DirectoryFollower
from headrace.clients.parameters import PublishClient
from headrace.clients.replay_pool import ShardPool
from headrace.clients.rounds import RoundClient
from headrace.clients.run import RunClient
from headrace.clients.shard import ShardClient
from headrace.config.checks import fragment_bytes
from headrace.config.choices import group_size, in_rounds, is_off_policy, most_samplers
from headrace.config.digest import config_json
from headrace.config.process import ProcessConfig
from headrace.envs.factory import probe
from headrace.envs.sample_validation import problem_of
from headrace.envs.spec import EnvironmentSpec
from headrace.envs.validation import check_fragment
from headrace.errors import UnavailableError
from headrace.events import EventLog
from headrace.metrics import start_metrics_server
from headrace.registry import announce
from headrace.rl.algorithm import make_algorithm, make_replay_algorithm, resolve_device
from headrace.rl.all_reduce import AllReduce
from headrace.rpc.drain import Drain
from headrace.rpc.entry import Ready
from headrace.rpc.fragments import SERVICE, TrajectoryServicer
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import RunningServer, serve, split_address
from headrace.sync.layout import Layout
from headrace.trail import FragmentTrail
from headrace.types import PolicyVersion
from services.learner.exchanging import Exchange
from services.learner.group_exchange import GroupExchange
from services.learner.intake import Intake
from services.learner.metrics import LearnerMetrics
from services.learner.publishing import PublishingExchange
from services.learner.replay_trainer import ReplayTrainer
from services.learner.round_exchange import Connections, RoundExchange, SharingTrainable
from services.learner.trainer import Trainer

_MAX_FRAGMENT_FACTOR = 4  # a fragment whose every step ends an episode carries each observation twice
_MAX_SAMPLE_BYTES = 2**30  # of one draw from one shard
_DRAW_SPAWN_KEY = 2**29
_GRACE_S = 2.0
_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class _Common:
    """What both kinds of learner need."""

    process: ProcessConfig
    spec: EnvironmentSpec
    handshake: Handshake
    metrics: LearnerMetrics
    events: EventLog
    client: PublishClient
    metrics_port: int
    drain: Drain

    def log_event(self, kind: str, sentence: str) -> None:
        """For clients, which report ``(kind, sentence)``."""
        self.events.emit(kind, reason=sentence)

    def announce(self, address: str) -> None:
        """Say where this learner is."""
        process = self.process
        announce(process.run_dir, "learner", process.index, address=address, metrics_port=self.metrics_port)


def run_learner(process: ProcessConfig, drain: Drain, ready: Ready) -> None:
    """Train until SIGTERM or the end of the run."""
    torch.set_num_threads(process.config.learner.torch_threads)
    common = _common(process, drain)
    with ExitStack() as closing:
        closing.callback(common.client.close)
        if is_off_policy(process.config):
            trainer: Trainer | ReplayTrainer = _open_replay(common, closing)
        else:
            trainer = _open_door(common, closing)
        ready()
        if not _run_has_ended(process, common.handshake, drain):
            trainer.run()
        while not drain.wait(1.0):
            pass  # whoever started the process also ends it: one that left would be started again


def _common(process: ProcessConfig, drain: Drain) -> _Common:
    config = process.config
    spec = probe(config.environment)
    metrics = LearnerMetrics(CollectorRegistry())
    metrics.identify(process.config_digest)
    events = EventLog(process.run_dir, process.name)
    handshake = Handshake(
        run_id=process.run_id,
        config_digest=process.config_digest,
        space_specification=spec.to_json(),
        peer=process.name,
        config_json=config_json(config),
    )
    client = PublishClient(
        process.paramserver,
        handshake,
        wait=drain.wait,
        on_event=lambda kind, sentence: events.emit(kind, reason=sentence),
    )
    host, _ = split_address(process.listen)
    port = start_metrics_server(host, process.metrics_port, metrics.registry)
    return _Common(process, spec, handshake, metrics, events, client, port, drain)


def _open_door(common: _Common, closing: ExitStack) -> Trainer:
    """On-policy: samplers send their fragments here."""
    config = common.process.config
    algorithm = make_algorithm(config, common.spec)
    intake = Intake(config, clock=time.monotonic, on_event=common.events.emit)
    trail = FragmentTrail(common.process.run_dir)
    closing.callback(trail.close)
    trainer = Trainer(
        config=config,
        algorithm=algorithm,
        intake=intake,
        exchange=_exchange(common, algorithm, closing),
        trail=trail,
        metrics=common.metrics,
        stopping=lambda: common.drain.requested,
    )
    # Accounts first: a sampler that connects must hear what is settled already.
    trainer.recover()
    server = _serve(common.process, common.spec, common.handshake, intake)
    closing.callback(server.stop, _GRACE_S)
    closing.callback(intake.stop)
    common.announce(server.address)
    return trainer


def _open_replay(common: _Common, closing: ExitStack) -> ReplayTrainer:
    """Off-policy: experience is drawn from where it lies."""
    process, config = common.process, common.process.config
    algorithm = make_replay_algorithm(config, common.spec)
    directory = DirectoryFollower(
        process.replay[0], common.handshake, process.name, on_event=common.log_event
    )
    closing.callback(directory.close)
    pool = ShardPool(
        lambda address: ShardClient(
            address,
            common.handshake,
            max_bytes=_MAX_SAMPLE_BYTES,
            shared_memory=config.stream.codec == "shared_memory",
            check=lambda sample: problem_of(sample, common.spec),
        ),
        exponent=config.replay.importance_sampling_exponent
        if config.replay.selector == "prioritized"
        else 0.0,
        rng=np.random.default_rng(np.random.SeedSequence(config.run.seed, spawn_key=(_DRAW_SPAWN_KEY,))),
        on_event=common.log_event,
    )
    closing.callback(pool.close)
    trainer = ReplayTrainer(
        config=config,
        algorithm=algorithm,
        pool=pool,
        directory=directory,
        exchange=_exchange(common, algorithm, closing),
        metrics=common.metrics,
        stopping=lambda: common.drain.requested,
    )
    trainer.recover()
    directory.start()
    server = serve(
        address=process.listen,
        service_names=["headrace.learner"],
        max_streams=1,
        setting="network.learner_port",
    )
    closing.callback(server.stop, _GRACE_S)
    common.announce(server.address)
    return trainer


def _exchange(common: _Common, algorithm: SharingTrainable, closing: ExitStack) -> Exchange:
    """How what is learned becomes part of a version: published by this one learner, or in rounds."""
    process, config = common.process, common.process.config
    if not in_rounds(config):
        return PublishingExchange(config, algorithm, common.client, common.metrics)

    host, _ = split_address(process.reached_at(process.listen))
    peers: AllReduce | None = None
    if group_size(config) is not None:
        timeout_s = config.sync.collective_timeout_s
        peers = AllReduce(host, device=resolve_device(config), timeout_s=timeout_s)

    def join(layout: Layout, have: PolicyVersion) -> RoundClient:
        return RoundClient(
            process.paramserver,
            common.handshake,
            learner_id=process.name,
            incarnation=random.getrandbits(63),
            layout=layout,
            have=have,
            vector_type=config.sync.transport_dtype,
            rendezvous="" if peers is None else peers.rendezvous,
            on_event=common.log_event,
        )

    make = RoundExchange if peers is None else partial(GroupExchange, peers)
    exchange = make(
        config,
        process.index,
        algorithm,
        Connections(common.client, join),
        common.metrics,
        stopping=lambda: common.drain.requested,
        on_event=common.events.emit,
    )
    closing.callback(exchange.close)
    return exchange


def _run_has_ended(process: ProcessConfig, handshake: Handshake, drain: Drain) -> bool:
    """Whether a learner that was started again finds that there is nothing left to do."""
    run = RunClient(process.paramserver, handshake)
    try:
        while not drain.requested:
            try:
                return run.state().status.ended
            except UnavailableError:
                drain.wait(_RETRY_S)
        return True
    finally:
        run.close()


def _serve(
    process: ProcessConfig, spec: EnvironmentSpec, handshake: Handshake, intake: Intake
) -> RunningServer:
    config = process.config
    servicer = TrajectoryServicer(
        intake,
        handshake,
        max_fragment_bytes=_MAX_FRAGMENT_FACTOR * fragment_bytes(config, spec) + 2**20,
        check=lambda fragment: check_fragment(fragment, spec, config.validation),
    )
    return serve(
        address=process.listen,
        handlers=[servicer.handler()],
        service_names=[SERVICE],
        max_streams=2 * most_samplers(config),
        setting="network.learner_port",
    )
