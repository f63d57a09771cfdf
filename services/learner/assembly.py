"""Puts a learner together from its parts, and takes it apart in order."""

from __future__ import annotations

import time

import torch
from prometheus_client import CollectorRegistry

from headrace.clients.parameters import PublishClient
from headrace.clients.run import RunClient
from headrace.config.checks import fragment_bytes
from headrace.config.digest import config_json
from headrace.config.process import ProcessConfig
from headrace.envs.factory import probe
from headrace.envs.spec import EnvironmentSpec
from headrace.envs.validation import check_fragment
from headrace.errors import UnavailableError
from headrace.events import EventLog
from headrace.metrics import start_metrics_server
from headrace.registry import announce
from headrace.rl.algorithm import make_algorithm
from headrace.rpc.drain import Drain
from headrace.rpc.fragments import SERVICE, TrajectoryServicer
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import RunningServer, serve, split_address
from headrace.trail import FragmentTrail
from services.learner.intake import Intake
from services.learner.metrics import LearnerMetrics
from services.learner.publishing import VersionPublisher
from services.learner.trainer import Trainer

_MAX_FRAGMENT_FACTOR = 4  # a fragment whose every step ends an episode carries each observation twice
_GRACE_S = 2.0
_RETRY_S = 0.2


def run_learner(process: ProcessConfig, drain: Drain) -> None:
    """Train until SIGTERM or the end of the run."""
    config = process.config
    torch.set_num_threads(config.learner.torch_threads)
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
    algorithm = make_algorithm(config, spec)
    intake = Intake(config, clock=time.monotonic, on_event=events.emit)
    trail = FragmentTrail(process.run_dir)
    trainer = Trainer(
        config=config,
        algorithm=algorithm,
        intake=intake,
        publisher=VersionPublisher(algorithm, client, metrics),
        trail=trail,
        metrics=metrics,
        stopping=lambda: drain.requested,
    )
    host, _ = split_address(process.listen)
    metrics_port = start_metrics_server(host, process.metrics_port, metrics.registry)
    server: RunningServer | None = None
    try:
        # Accounts first: a sampler that connects must hear what is settled already.
        trainer.recover()
        server = _serve(process, spec, handshake, intake)
        announce(process.run_dir, "learner", process.index, address=server.address, metrics_port=metrics_port)
        if not _run_has_ended(process, handshake, drain):
            trainer.run()
        while not drain.wait(1.0):
            pass  # whoever started the process also ends it: one that left by itself would be started again
    except UnavailableError:
        if not drain.requested:
            raise
    finally:
        intake.stop()
        if server is not None:
            server.stop(_GRACE_S)
        client.close()
        trail.close()


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
        max_streams=max(64, 2 * config.sampler.count),
        setting="network.learner_port",
    )
