"""Served shards of replay for tests, and the raw client side of a sample stream."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from streams import constant_stream

from headrace.clients.shard import ShardClient
from headrace.codec.samples import SampleReply
from headrace.config.sections import ReplayConfig
from headrace.replay.items import PriorityOutcome
from headrace.replay.shard import HotShard, ShardStats
from headrace.rpc.handshake import Handshake
from headrace.rpc.replay_shard import SERVICE, ReplayShardServicer, Shard
from headrace.rpc.server import RunningServer, serve
from headrace.types import Sample
from headrace.v1 import replay_pb2

OWN = Handshake(run_id="run", config_digest="digest", peer="test")
SETTINGS = ReplayConfig(selector="prioritized", priority_exponent=1.0, importance_sampling_exponent=1.0)
OPEN = replay_pb2.SampleRequest(open=replay_pb2.OpenSampling(handshake=OWN.to_proto()))
WAIT_S = 30.0
MAX_BYTES = 2**26


Serve = Callable[..., "Node"]
Connect = Callable[..., ShardClient]


@dataclass
class Node:
    """A served shard."""

    shard: Any
    server: RunningServer
    servicer: ReplayShardServicer

    @property
    def address(self) -> str:
        return self.server.address


def serve_shard(
    shard: Shard,
    *,
    address: str = "127.0.0.1:0",
    message_bytes: int = 2**20,
    max_streams: int = 4,
    **more: Any,
) -> Node:
    servicer = ReplayShardServicer(shard, OWN, message_bytes=message_bytes, **more)
    server = serve(
        address=address, handlers=[servicer.handler()], service_names=[SERVICE], max_streams=max_streams
    )
    return Node(shard, server, servicer)


def hot_shard(steps: int = 16, lanes: int = 4, *, seed: int = 0, **changes: Any) -> HotShard:
    """Steps of lanes; the one observation of an item is its key + 1."""
    settings = SETTINGS.model_copy(update=changes)
    shard = HotShard(settings, n_step=1, gamma=0.9, rng=np.random.default_rng(seed))
    for fragment in constant_stream(steps, lanes).fragments(8) if steps else ():
        shard.insert(fragment)
    return shard


class MadeUpShard:
    """Gives what ``make(num_items)`` makes, as a shard of one unit of mass."""

    def __init__(self, make: Callable[[int], Sample | None]) -> None:
        self._make = make
        self.asked: list[int] = []

    def sample(self, num_items: int, _sequence_length: int = 1) -> Sample | None:
        self.asked.append(num_items)
        return self._make(num_items)

    def update_priorities(self, keys: Any, _priorities: Any) -> PriorityOutcome:
        return PriorityOutcome(ignored=len(keys))

    def set_version(self, _number: int) -> None:
        pass

    def stats(self) -> ShardStats:
        return ShardStats(count=1, mass=1.0)


def made_up_sample(num_items: int, *shape: int, value: float = 0.0) -> Sample:
    """Items whose observations are of ``shape``."""
    return Sample(
        np.arange(num_items),
        np.full(num_items, 0.5),
        np.zeros(num_items, np.int64),
        {"observation": np.full((num_items, *shape), value, np.float32)},
    )


class RawStream:
    """The client side of a sample stream: messages out, parsed responses in."""

    def __init__(self, channel: grpc.Channel, *messages: Any) -> None:
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = channel.stream_stream(
            f"/{SERVICE}/Sample",
            request_serializer=None,
            response_deserializer=replay_pb2.SampleResponse.FromString,
        )
        self.call: Any = call(iter(self._messages.get, None), timeout=WAIT_S)
        self.send(*messages)

    def send(self, *messages: Any) -> None:
        for message in messages:
            self._messages.put(message if isinstance(message, bytes) else message.SerializeToString())

    def draw(self, request_id: int, num_items: int) -> None:
        draw = replay_pb2.Draw(request_id=request_id, num_items=num_items)
        self.send(replay_pb2.SampleRequest(draw=draw))

    def receive(self) -> replay_pb2.SampleResponse:
        response: replay_pb2.SampleResponse = next(self.call)
        return response

    def end(self) -> None:
        """Say that nothing follows."""
        self._messages.put(None)

    def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ends."""
        with pytest.raises(grpc.RpcError):
            for _ in self.call:
                pass
        self.end()
        return self.call.code(), self.call.details()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def draw(num_items: int, **changes: Any) -> replay_pb2.SampleRequest:
    return replay_pb2.SampleRequest(draw=replay_pb2.Draw(num_items=num_items, **changes))


def reply_to(client: ShardClient, num_items: int, sequence_length: int = 1) -> SampleReply:
    until(lambda: client.ready)
    reply = client.answer(client.ask(num_items, 1, sequence_length), WAIT_S)
    assert reply is not None
    return reply


def is_healthy(channel: grpc.Channel) -> bool:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=WAIT_S)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
