"""ReplayShardService over a real channel: draws, credit, priorities, refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from replay_nodes import (
    OPEN,
    OWN,
    WAIT_S,
    MadeUpShard,
    Node,
    RawStream,
    hot_shard,
    made_up_sample,
    serve_shard,
    until,
)

from headrace.clients.shard import ShardClient
from headrace.codec.samples import SampleReply
from headrace.rpc.channel import open_channel
from headrace.rpc.handshake import Handshake
from headrace.rpc.replay_shard import SERVICE
from headrace.testing.proxy import Proxy
from headrace.types import Sample
from headrace.v1 import replay_pb2

MAX_BYTES = 2**26
Serve = Callable[..., Node]


@pytest.fixture
def served() -> Iterator[Serve]:
    nodes: list[Node] = []

    def make(shard: Any = None, **more: Any) -> Node:
        nodes.append(serve_shard(hot_shard() if shard is None else shard, **more))
        return nodes[-1]

    yield make
    for node in nodes:
        node.server.stop(0.0)


@pytest.fixture
def connect() -> Iterator[Callable[..., ShardClient]]:
    clients: list[ShardClient] = []

    def make(address: str, **changes: Any) -> ShardClient:
        options: dict[str, Any] = {"handshake": OWN, "max_bytes": MAX_BYTES, **changes}
        clients.append(ShardClient(address, options.pop("handshake"), **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def reply_to(client: ShardClient, num_items: int) -> SampleReply:
    until(lambda: client.ready)
    reply = client.answer(client.ask(num_items, 1), WAIT_S)
    assert reply is not None
    return reply


def is_healthy(channel: grpc.Channel) -> bool:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=WAIT_S)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_a_draw_brings_items_with_their_keys_and_the_shard_as_it_was(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    client = connect(served().address)
    reply = reply_to(client, 10)
    assert reply.sample is not None
    assert np.array_equal(reply.sample.columns["observation"][:, 0], reply.sample.keys + 1)
    assert reply.sample.probabilities == pytest.approx(1 / 64)
    assert (reply.count, reply.mass, reply.sample.size) == (64, 64.0, 10)


def test_an_empty_shard_says_so_and_no_error(served: Serve, connect: Callable[..., ShardClient]) -> None:
    client = connect(served(hot_shard(steps=0)).address)
    reply = reply_to(client, 10)
    assert (reply.sample, reply.reason, reply.mass) == (None, "empty", 0.0)
    assert reply_to(client, 10).reason == "empty"  # the stream goes on


def test_a_shard_sends_nothing_that_was_not_asked_for(served: Serve) -> None:
    shard = MadeUpShard(made_up_sample)
    with open_channel(served(shard).address) as channel:
        stream = RawStream(channel, OPEN)
        assert stream.receive().WhichOneof("kind") == "opened"
        stream.draw(7, 3)
        stream.draw(8, 2)
        answers = [stream.receive().sample.header for _ in range(2)]
        stream.end()
        assert [(answer.request_id, answer.num_items) for answer in answers] == [(7, 3), (8, 2)]
        assert list(stream.call) == []
    assert shard.asked == [3, 2]


def test_answers_are_split_into_messages_within_their_limit(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    shard = MadeUpShard(lambda number: made_up_sample(number, 1000, value=3.0))
    node = served(shard, message_bytes=4096)
    with open_channel(node.address) as channel:
        stream = RawStream(channel, OPEN)
        stream.receive()
        stream.draw(1, 5)
        first = stream.receive()
        messages = [first, *(stream.receive() for _ in range(first.sample.parts - 1))]
        stream.end()
    assert len(messages) > 4
    assert all(message.ByteSize() <= 4096 for message in messages)
    reply = reply_to(connect(node.address), 5)
    assert reply.sample is not None
    assert (reply.sample.columns["observation"] == 3.0).all()


def test_health_answers_while_observations_of_4_mb_travel(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    node = served(MadeUpShard(lambda number: made_up_sample(number, 2**20)))
    client = connect(node.address, max_bytes=2**27)
    until(lambda: client.ready)
    requests = [client.ask(8, 0) for _ in range(3)]
    with open_channel(node.address) as channel:
        for _ in range(5):
            assert is_healthy(channel)
    for request in requests:
        reply = client.answer(request, WAIT_S)
        assert reply is not None
        assert reply.sample is not None
        assert reply.sample.columns["observation"].nbytes == 8 * 2**22


def test_an_answer_has_fewer_items_rather_than_too_many_bytes(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    shard = MadeUpShard(lambda number: made_up_sample(number, 256))  # 1 KiB an item
    client = connect(served(shard, max_answer_bytes=2**15).address)
    for _ in range(2):
        reply_to(client, 10_000)
    assert shard.asked == [16, 32]  # cautious while it isn't known how large an item is


def test_unpicked_answers_hold_further_requests_back(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    shard = MadeUpShard(made_up_sample)
    client = connect(served(shard).address)
    until(lambda: client.ready)
    requests = [client.ask(1, 0) for _ in range(20)]
    until(lambda: len(shard.asked) == 8)
    assert client.answer(requests[0], WAIT_S) is not None
    until(lambda: len(shard.asked) == 9)
    assert all(client.answer(request, WAIT_S) is not None for request in requests[1:])
    assert len(shard.asked) == 20


def test_a_foreign_run_is_refused_in_words(served: Serve, connect: Callable[..., ShardClient]) -> None:
    client = connect(served().address, handshake=Handshake(run_id="other", config_digest="digest"))
    until(lambda: client.fatal is not None)
    assert "these are two runs" in str(client.fatal)
    assert not client.ready


def test_priorities_of_a_foreign_run_change_nothing(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    node = served()
    client = connect(node.address, handshake=Handshake(run_id="other", config_digest="digest"))
    client.update_priorities(np.arange(4), np.full(4, 9.0))
    until(lambda: client.priorities["unsent"] == 4)
    assert node.shard.stats().mass == 64.0


def draw(num_items: int, **changes: Any) -> replay_pb2.SampleRequest:
    return replay_pb2.SampleRequest(draw=replay_pb2.Draw(num_items=num_items, **changes))


@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        ([draw(1)], "must be its handshake"),
        ([OPEN, OPEN], "only draws follow"),
        ([OPEN, draw(0)], "1 to 65536"),
        ([OPEN, draw(65537)], "1 to 65536"),
        ([OPEN, draw(1, newest_version=2**63)], "too large"),
        ([b"\xff\xff"], "no SampleRequest"),
        ([OPEN, b"\xff\xff"], "no SampleRequest"),
        ([b""], "must be its handshake"),
    ],
    ids=["no-open", "two-opens", "no-items", "too-many", "version", "garbage", "late-garbage", "empty"],
)
def test_a_broken_protocol_is_invalid_argument_in_words(
    served: Serve, requests: list[Any], sentence: str
) -> None:
    with open_channel(served().address) as channel:
        code, details = RawStream(channel, *requests).status()
        assert is_healthy(channel)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert sentence in details


def test_a_peer_that_says_nothing_is_cut(served: Serve) -> None:
    with open_channel(served(handshake_s=0.2).address) as channel:
        code, details = RawStream(channel).status()
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "no OpenSampling" in details


def test_health_and_priorities_go_on_when_all_streams_are_taken(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    node = served(max_streams=2)
    with open_channel(node.address) as channel:
        streams = [RawStream(channel, OPEN) for _ in range(2)]
        for stream in streams:
            stream.receive()
        for _ in range(25):  # more than there are worker threads
            code, _ = RawStream(channel, OPEN).status()
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert is_healthy(channel)
        client = connect(node.address)
        client.update_priorities(np.arange(3), np.ones(3))
        until(lambda: client.priorities["applied"] == 3)
        for stream in streams:
            stream.end()
            stream.call.cancel()
    until(lambda: client.ready)  # it has tried again until there was room


def test_a_draining_shard_ends_streams_as_unavailable_and_takes_no_new_ones(served: Serve) -> None:
    node = served()
    with open_channel(node.address) as channel:
        stream = RawStream(channel, OPEN)
        stream.receive()
        node.servicer.drain()
        expected = (grpc.StatusCode.UNAVAILABLE, "the shard is draining")
        assert stream.status() == expected
        assert RawStream(channel, OPEN).status() == expected


def test_a_shard_that_is_back_is_drawn_from_again(served: Serve, connect: Callable[..., ShardClient]) -> None:
    node = served()
    client = connect(node.address)
    reply_to(client, 1)
    node.server.stop(0.0)
    until(lambda: not client.ready)
    assert client.ask(1, 0) == -1
    served(address=node.address)
    assert reply_to(client, 1).sample is not None


def test_what_was_asked_for_of_a_shard_that_dies_never_comes_and_nobody_hangs(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    drawing, dead = threading.Event(), threading.Event()

    def stall(number: int) -> Sample:
        drawing.set()
        dead.wait(WAIT_S)
        return made_up_sample(number)

    node = served(MadeUpShard(stall))
    with Proxy("127.0.0.1", node.server.port) as proxy:
        client = connect(proxy.address)
        until(lambda: client.ready)
        request = client.ask(1, 0)
        assert drawing.wait(WAIT_S)
        proxy.cut()
        assert client.answer(request, WAIT_S) is None
        assert not client.ready
        dead.set()


def test_answers_over_a_network_carry_a_checksum(served: Serve, connect: Callable[..., ShardClient]) -> None:
    node = served()
    with open_channel(node.address) as channel:
        opening = replay_pb2.OpenSampling(handshake=OWN.to_proto(), checksum=True)
        stream = RawStream(channel, replay_pb2.SampleRequest(open=opening))
        stream.receive()
        stream.draw(1, 4)
        assert stream.receive().sample.header.crc32
        stream.end()
    assert reply_to(connect(node.address, checksum=True), 4).sample is not None


def test_a_sample_that_fails_the_check_is_refused_with_its_problem(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    client = connect(
        served(MadeUpShard(lambda number: made_up_sample(number, value=np.nan))).address,
        check=lambda sample: "" if np.isfinite(sample.columns["observation"]).all() else "it is not finite",
    )
    reply = reply_to(client, 3)
    assert (reply.sample, reply.problem) == (None, "it is not finite")
    assert (client.refused, client.problem) == (1, "it is not finite")


def test_bad_priorities_change_nothing_and_are_counted(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    node = served()
    client = connect(node.address)
    client.update_priorities(np.array([0, 1, 2, 3, 10**9]), np.array([np.nan, -1.0, np.inf, 1e300, 1.0]))
    until(lambda: client.priorities.total() == 5)
    assert client.priorities == {"applied": 0, "ignored": 1, "refused": 4}
    assert node.shard.stats().mass == 64.0


def test_refused_priorities_come_with_a_reason_and_lies_about_lengths_are_refused(served: Serve) -> None:
    with open_channel(served().address) as channel:
        update: Any = channel.unary_unary(
            f"/{SERVICE}/UpdatePriorities",
            request_serializer=replay_pb2.UpdatePrioritiesRequest.SerializeToString,
            response_deserializer=replay_pb2.UpdatePrioritiesResponse.FromString,
        )
        keys = np.arange(2).tobytes()
        priorities = np.array([1.0, np.nan], "<f4").tobytes()
        request = replay_pb2.UpdatePrioritiesRequest(
            handshake=OWN.to_proto(), keys=keys, priorities=priorities
        )
        assert update(request).reason == "1 of 2 priorities are NaN, infinite or negative"
        for lie in (keys[:-1], keys + keys, b""):
            request.keys = lie
            with pytest.raises(grpc.RpcError) as raised:
                update(request)
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_many_priorities_arrive_in_order_in_calls_of_bounded_size(
    served: Serve, connect: Callable[..., ShardClient]
) -> None:
    node = served()
    client = connect(node.address)
    for value in (5.0, 3.0):
        client.update_priorities(np.arange(200_000) % 64, np.full(200_000, value))
    until(lambda: client.priorities["applied"] == 400_000)
    assert node.shard.stats().mass == 64 * 3.0


def test_priorities_that_cannot_be_sent_are_counted(connect: Callable[..., ShardClient]) -> None:
    client = connect("127.0.0.1:1")
    assert client.update_priorities(np.arange(2**20), np.ones(2**20))
    for _ in range(3):
        assert client.update_priorities(np.arange(2**20), np.ones(2**20))
    client.close()
    assert client.priorities == {"unsent": 4 * 2**20}
    assert not client.update_priorities(np.arange(1), np.ones(1))


def test_stats_say_how_it_stands(served: Serve) -> None:
    node = served()
    node.shard.sample(5)
    node.shard.set_version(9)
    with open_channel(node.address) as channel:
        ask: Any = channel.unary_unary(
            f"/{SERVICE}/GetShardStats",
            request_serializer=replay_pb2.GetShardStatsRequest.SerializeToString,
            response_deserializer=replay_pb2.GetShardStatsResponse.FromString,
        )
        stats = ask(replay_pb2.GetShardStatsRequest())
    assert (stats.count, stats.mass, stats.inserted, stats.stored, stats.drawn) == (64, 64.0, 64, 64, 5)
    assert stats.newest_version == 9
