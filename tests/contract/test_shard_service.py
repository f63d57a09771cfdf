"""ReplayShardService over a real channel: draws, credits, priorities, refusals."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import numpy as np
import pytest
from streams import constant_stream

from headrace.clients.replay_pool import PoolDraw, ShardPool
from headrace.clients.shard import ShardClient
from headrace.codec.samples import SampleAssembler, encode_sample
from headrace.config.sections import ReplayConfig
from headrace.errors import CodecError
from headrace.replay.shard import HotShard
from headrace.rpc.channel import open_channel
from headrace.rpc.handshake import Handshake
from headrace.rpc.replay_shard import SERVICE, ReplayShardServicer
from headrace.rpc.server import RunningServer, serve
from headrace.v1 import replay_pb2

OWN = Handshake(run_id="run", config_digest="digest", peer="test")
SETTINGS = ReplayConfig(selector="prioritized", priority_exponent=1.0, importance_sampling_exponent=1.0)
MAX_BYTES = 2**26


@dataclass
class Node:
    """A served shard."""

    shard: HotShard
    server: RunningServer

    @property
    def address(self) -> str:
        return self.server.address


@dataclass(frozen=True)
class Entry:
    """A line of the directory."""

    shard_id: str
    address: str
    mass: float
    count: int
    tier: str = "hot"


def entry(name: str, node: Node) -> Entry:
    stats = node.shard.stats()
    return Entry(name, node.address, stats.mass, stats.count)


@pytest.fixture
def node() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(
        steps: int = 16, lanes: int = 4, address: str = "127.0.0.1:0", message_bytes: int = 2**20
    ) -> Node:
        shard = HotShard(SETTINGS, n_step=1, gamma=0.9, rng=np.random.default_rng(len(nodes)))
        for fragment in constant_stream(steps, lanes).fragments(8) if steps else ():
            shard.insert(fragment)
        servicer = ReplayShardServicer(shard, OWN, message_bytes=message_bytes)
        server = serve(address=address, handlers=[servicer.handler()], service_names=[SERVICE], max_streams=4)
        nodes.append(Node(shard, server))
        return nodes[-1]

    yield make
    for made in nodes:
        made.server.stop(0.2)


@pytest.fixture
def pool() -> Iterator[ShardPool]:
    made = ShardPool(
        lambda address: ShardClient(address, OWN, max_bytes=MAX_BYTES),
        exponent=1.0,
        rng=np.random.default_rng(0),
    )
    yield made
    made.close()


def drawn(pool: ShardPool, number: int) -> PoolDraw:
    draw = pool.draw(number, newest_version=1, timeout_s=60.0)
    assert draw is not None
    return draw


def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come; a hang fails by the suite's own timeout."""
    while not condition():
        time.sleep(0.005)


def test_two_shards_are_drawn_from_as_one_buffer(node: Callable[..., Node], pool: ShardPool) -> None:
    first, second = node(steps=8), node(steps=24)
    pool.set_shards([entry("a", first), entry("b", second)])
    draw = drawn(pool, 20_000)
    sizes = {origin.client.address: len(origin.keys) for origin in draw.origins}
    assert sizes[second.address] / 20_000 == pytest.approx(0.75, abs=0.02)
    assert draw.importance_weights == pytest.approx(1.0)  # equal priorities: nothing to correct
    assert draw.columns["observation"].shape == (20_000, 1)
    for origin in draw.origins:
        steps = draw.columns["observation"][origin.rows, 0] - 1
        assert np.array_equal(steps, origin.keys)  # rows belong to their keys, whatever the order


def test_priorities_go_back_to_the_shard_and_item_they_belong_to(
    node: Callable[..., Node], pool: ShardPool
) -> None:
    first, second = node(), node()
    pool.set_shards([entry("a", first), entry("b", second)])
    draw = drawn(pool, 500)
    before = first.shard.stats().mass + second.shard.stats().mass
    pool.update_priorities(draw, np.full(500, 3.0, np.float32))
    until(lambda: sum(origin.client.priorities["applied"] for origin in draw.origins) == 500)
    after = {0: first.shard, 1: second.shard}
    for origin in draw.origins:
        shard = first.shard if origin.client.address == first.address else second.shard
        distinct = len(np.unique(origin.keys))
        assert shard.stats().mass == pytest.approx(64 + 2.0 * distinct)
    assert sum(shard.stats().mass for shard in after.values()) > before


def test_importance_weights_use_the_probability_that_was_really_used(
    node: Callable[..., Node], pool: ShardPool
) -> None:
    first, second = node(), node()
    first.shard.update_priorities(np.arange(64), np.full(64, 3.0))
    # The directory still says that both are equal: the weights must put that right.
    pool.set_shards([Entry("a", first.address, 64.0, 64), Entry("b", second.address, 64.0, 64)])
    draw = drawn(pool, 100)
    assert draw.importance_weights == pytest.approx(1.0)


def test_a_shard_that_dies_is_replaced_by_the_others(node: Callable[..., Node], pool: ShardPool) -> None:
    first, second = node(), node()
    pool.set_shards([entry("a", first), entry("b", second)])
    drawn(pool, 100)
    second.server.stop(0.0)
    draw = drawn(pool, 1000)
    until(lambda: {origin.client.address for origin in drawn(pool, 100).origins} == {first.address})
    assert len(draw.versions) == 1000


def test_a_shard_that_is_back_is_drawn_from_again(node: Callable[..., Node], pool: ShardPool) -> None:
    first = node()
    pool.set_shards([entry("a", first)])
    drawn(pool, 10)
    address = first.address
    first.server.stop(0.0)
    node(address=address)
    assert len(drawn(pool, 10).versions) == 10


def test_nothing_to_draw_is_no_error_and_says_what_it_waits_for(
    node: Callable[..., Node], pool: ShardPool
) -> None:
    assert pool.draw(10, 0, timeout_s=0.05) is None
    assert set(pool.wait_seconds) == {"empty"}
    pool.set_shards([Entry("a", node(steps=0).address, 1.0, 1)])  # the directory is behind
    assert pool.draw(10, 0, timeout_s=0.5) is None


def test_large_items_are_split_into_messages_and_health_answers_meanwhile(node: Callable[..., Node]) -> None:
    big = node(steps=16, lanes=512, message_bytes=2**12)
    client = ShardClient(big.address, OWN, max_bytes=MAX_BYTES)
    until(lambda: client.ready)
    reply = client.answer(client.ask(30_000, 1), 60.0)
    client.close()
    assert reply is not None
    assert reply.sample is not None
    assert reply.sample.size == 30_000
    assert reply.count == 16 * 512


def test_a_foreign_run_is_refused_in_words(node: Callable[..., Node]) -> None:
    client = ShardClient(node().address, Handshake(run_id="other", config_digest="digest"), max_bytes=1)
    until(lambda: client.fatal is not None)
    client.close()
    assert "these are two runs" in str(client.fatal)


@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        ([replay_pb2.SampleRequest(draw=replay_pb2.Draw(num_items=1))], "must be its handshake"),
        ([replay_pb2.SampleRequest(open=OWN.to_proto())] * 2, "only draws follow"),
        (
            [
                replay_pb2.SampleRequest(open=OWN.to_proto()),
                replay_pb2.SampleRequest(draw=replay_pb2.Draw(num_items=0)),
            ],
            "1 to 65536",
        ),
    ],
)
def test_a_broken_protocol_is_refused_in_words(
    node: Callable[..., Node], requests: list[replay_pb2.SampleRequest], sentence: str
) -> None:
    messages: queue.SimpleQueue[replay_pb2.SampleRequest] = queue.SimpleQueue()
    for request in requests:
        messages.put(request)
    with open_channel(node().address) as channel:
        call = channel.stream_stream(
            f"/{SERVICE}/Sample",
            request_serializer=replay_pb2.SampleRequest.SerializeToString,
            response_deserializer=replay_pb2.SampleResponse.FromString,
        )(iter(messages.get, None), timeout=60.0)
        with pytest.raises(grpc.RpcError) as raised:
            list(call)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in raised.value.details()


def test_bad_priorities_change_nothing_and_are_counted(node: Callable[..., Node]) -> None:
    served = node()
    client = ShardClient(served.address, OWN, max_bytes=MAX_BYTES)
    client.update_priorities(np.array([0, 1, 2, 10**9]), np.array([np.nan, -1.0, np.inf, 1.0]))
    until(lambda: client.priorities.total() == 4)
    client.close()
    assert client.priorities == {"applied": 0, "ignored": 1, "refused": 3}
    assert served.shard.stats().mass == 64.0


def test_the_bytes_are_those_that_protobuf_writes() -> None:
    shard = HotShard(SETTINGS, n_step=1, gamma=0.9, rng=np.random.default_rng(0))
    shard.insert(constant_stream(8, 2).fragments(8)[0])
    sample = shard.sample(5)
    (message,) = encode_sample(7, sample, count=16, mass=16.0, message_bytes=2**20)
    parsed = replay_pb2.SampleResponse.FromString(message)
    assert parsed.SerializeToString() == message
    assert (parsed.request_id, parsed.num_items, parsed.count) == (7, 5, 16)


def test_a_reader_takes_nothing_that_was_not_agreed() -> None:
    shard = HotShard(SETTINGS, n_step=1, gamma=0.9, rng=np.random.default_rng(0))
    shard.insert(constant_stream(8, 2).fragments(8)[0])
    (message,) = encode_sample(7, shard.sample(50), count=16, mass=16.0, message_bytes=2**20)
    with pytest.raises(CodecError, match="at most 100 bytes"):
        SampleAssembler(100).feed(message)
    for cut in range(1, len(message), 97):
        with pytest.raises(CodecError):
            SampleAssembler(2**20).feed(message[:cut])
