"""Whatever is thrown at a port, the service stays healthy, and a good client is served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import directing
import grpc
import hostile
import pytest
from cold import Partition, own
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paramserving import eventually, make_handshake, make_settings, serving
from pipe import Learner, make_config, make_sender
from relaying import relaying
from replay_nodes import MAX_BYTES, OWN, hot_shard, serve_shard
from securing import Keeper, identity

from headrace.clients.directory import glance
from headrace.clients.run import RunClient
from headrace.clients.shard import ShardClient
from headrace.local.redis import LocalRedis
from headrace.rpc.channel import open_channel
from headrace.rpc.credentials import Credentials
from headrace.rpc.handshake import Handshake
from headrace.v1 import (
    directory_service_pb2,
    parameters_service_pb2,
    replay_service_pb2,
    trajectory_service_pb2,
)

WAIT_S = 60.0
HEALTHY = health_pb2.HealthCheckResponse.SERVING

_SERVICES = {
    "paramserver": (parameters_service_pb2,),
    "relay": (parameters_service_pb2,),
    "learner": (trajectory_service_pb2,),
    "sampler": (replay_service_pb2,),
    "directory": (directory_service_pb2,),
    "cold tier": (replay_service_pb2, trajectory_service_pb2),
}


class Port:
    """A port under attack. ``use`` is a good client's visit, which fails if it isn't served."""

    def __init__(self, name: str, address: str, use: Callable[[], None]) -> None:
        self.name = name
        self.address = address
        self._use = use

    @property
    def methods(self) -> list[str]:
        """Full names of its methods, e.g. ``/headrace.v1.RunService/StopRun``."""
        files = _SERVICES[self.name]
        services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
        return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]

    def check(self) -> None:
        """Fails unless it is healthy, and a good client is served."""
        with open_channel(self.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            assert stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == HEALTHY
        self._use()


def _open(name: str, tmp_path: Path, stack: ExitStack, redis: Callable[[], LocalRedis]) -> Port:
    if name in ("paramserver", "relay"):
        settings = make_settings(tmp_path)
        address = stack.enter_context(serving(settings)).server.address
        if name == "relay":
            relay = stack.enter_context(relaying(settings, address))
            address = relay.address
            eventually(lambda: _is_healthy(address), "the relay has heard of the run")
        return Port(name, address, lambda: _ask_for_the_run(address))
    if name == "learner":
        learner = Learner(make_config())
        stack.callback(learner.close)
        learner.start_training()
        return Port(name, learner.server.address, lambda: _get_leave(learner.server.address))
    if name == "sampler":
        node = serve_shard(hot_shard())
        stack.callback(node.server.stop, 0.0)
        return Port(name, node.address, lambda: _reach_shard(node.address, OWN))
    if name == "directory":
        directory = stack.enter_context(directing.serving(tmp_path))
        return Port(name, directory.address, lambda: _glance(directory.address))
    partition = Partition(redis().url).wait_ready()
    stack.callback(partition.stop)
    return Port(name, partition.server.address, lambda: _reach_shard(partition.server.address, own()))


@pytest.fixture(params=list(_SERVICES))
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Port]:
    """Every port there is, without credentials: nothing else is in the way."""
    with ExitStack() as stack:
        yield _open(request.param, tmp_path, stack, lambda: request.getfixturevalue("redis_server"))


@pytest.mark.parametrize("attack", list(hostile.RAW))
def test_bytes_that_are_no_grpc(port: Port, attack: str) -> None:
    hostile.RAW[attack](port.address)
    port.check()


@pytest.mark.parametrize("attack", list(hostile.RAW))
def test_bytes_that_are_no_grpc_at_a_port_with_tls(tmp_path: Path, attack: str) -> None:
    with identity(Keeper(tmp_path / "credentials").credentials()), serving(make_settings(tmp_path)) as run:
        hostile.RAW[attack](run.server.address)
        with open_channel(run.server.address, Credentials()) as plaintext:
            with pytest.raises(grpc.RpcError):
                plaintext.unary_unary("/headrace.v1.RunService/GetRunState")(b"", timeout=WAIT_S)
        Port("paramserver", run.server.address, lambda: _ask_for_the_run(run.server.address)).check()


def test_garbage_in_every_rpc_is_refused(port: Port) -> None:
    limit = ("grpc.max_send_message_length", -1)
    with grpc.insecure_channel(port.address, options=[limit]) as channel:
        for method in [*port.methods, "/headrace.v1.NoService/NoMethod", "/grpc.health.v1.Health/Check"]:
            codes = hostile.throw(channel, method)
            assert all(isinstance(code, grpc.StatusCode) for code in codes)
            assert grpc.StatusCode.DEADLINE_EXCEEDED not in codes, method
    port.check()


def test_connections_that_say_nothing(port: Port) -> None:
    with hostile.half_open(port.address):
        port.check()
    port.check()


def test_more_silent_streams_than_it_has_places_for(port: Port) -> None:
    over = threading.Event()
    with open_channel(port.address) as channel:
        calls: list[Any] = [
            channel.stream_stream(port.methods[index % len(port.methods)])(_silent_until(over))
            for index in range(200)
        ]
        with open_channel(port.address) as another:
            stub: Any = health_pb2_grpc.HealthStub(another)
            assert stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == HEALTHY
        for call in calls:
            call.cancel()
        over.set()
    eventually(lambda: _is_served(port), "a good client is served")


def _silent_until(over: threading.Event) -> Iterator[bytes]:
    over.wait(WAIT_S)
    yield from ()


def _is_served(port: Port) -> bool:
    try:
        port.check()
    except Exception:
        return False
    return True


def _is_healthy(address: str) -> bool:
    with open_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return bool(stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == HEALTHY)


def _ask_for_the_run(address: str) -> None:
    client = RunClient(address, make_handshake(make_settings(Path())))
    try:
        assert client.state(timeout_s=WAIT_S).status.phase in ("starting", "running")
    finally:
        client.close()


def _get_leave(address: str) -> None:
    sender = make_sender(address)
    try:
        assert sender.acquire(acting_version=lambda: 10**9, timeout_s=WAIT_S) is not None, sender.fatal
    finally:
        sender.close()


def _reach_shard(address: str, handshake: Handshake) -> None:
    client = ShardClient(address, handshake, max_bytes=MAX_BYTES)
    try:
        eventually(lambda: client.ready or client.fatal is not None, "the stream is open")
        assert client.fatal is None
    finally:
        client.close()


def _glance(address: str) -> None:
    assert glance(address, timeout_s=WAIT_S).view.env_steps == 0
