"""Puts a replay service together from its parts, and takes it apart in order."""

from __future__ import annotations

from contextlib import ExitStack

from prometheus_client import CollectorRegistry

from headrace.config.digest import config_json
from headrace.config.process import ProcessConfig
from headrace.metrics import start_metrics_server
from headrace.registry import announce
from headrace.rpc.drain import Drain
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import serve, split_address
from services.replay.directory_servicer import SERVICE, DirectoryEndpoint
from services.replay.metrics import ReplayMetrics

_GRACE_S = 2.0
_SPARE_STREAMS = 64


def run_replay(process: ProcessConfig, drain: Drain) -> None:
    """Serve until SIGTERM."""
    config = process.config
    metrics = ReplayMetrics(CollectorRegistry())
    metrics.identify(process.config_digest)
    handshake = Handshake(
        run_id=process.run_id,
        config_digest=process.config_digest,
        peer=process.name,
        config_json=config_json(config),
    )
    host, _ = split_address(process.listen)
    metrics_port = start_metrics_server(host, process.metrics_port, metrics.registry)
    with ExitStack() as closing:
        directory = DirectoryEndpoint(config, handshake, run_dir=process.run_dir, metrics=metrics)
        server = serve(
            address=process.listen,
            register=[directory.register],
            service_names=[SERVICE],
            max_streams=4 * config.sampler.count + _SPARE_STREAMS,
            setting="network.replay_port",
        )
        closing.callback(server.stop, _GRACE_S)
        closing.callback(directory.close)
        announce(process.run_dir, "replay", process.index, address=server.address, metrics_port=metrics_port)
        while not drain.wait(1.0):
            pass
