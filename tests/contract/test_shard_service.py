"""ReplayShardService over a real channel: draws, credit, priorities, refusals."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from replay_nodes import (
    OPEN,
    OWN,
    WAIT_S,
    Connect,
    MadeUpShard,
    RawStream,
    Serve,
    draw,
    hot_shard,
    is_healthy,
    made_up_sample,
    reply_to,
    until,
)

from headrace.codec.slab import is_supported
from headrace.rpc.channel import open_channel
from headrace.rpc.replay_shard import SERVICE
from headrace.testing.proxy import Proxy
from headrace.types import Sample
from headrace.v1 import replay_pb2


def test_a_draw_brings_items_with_their_keys_and_the_shard_as_it_was(
    served: Serve, connect_shard: Connect
) -> None:
    client = connect_shard(served().address)
    reply = reply_to(client, 10)
    assert reply.sample is not None
    assert np.array_equal(reply.sample.columns["observation"][:, 0], reply.sample.keys + 1)
    assert reply.sample.probabilities == pytest.approx(1 / 64)
    assert (reply.count, reply.mass, reply.sample.size) == (64, 64.0, 10)


def test_a_draw_of_sequences_brings_the_steps_that_follow(served: Serve, connect_shard: Connect) -> None:
    client = connect_shard(served(hot_shard(steps=16, lanes=4)).address)
    reply = reply_to(client, 16, sequence_length=6)
    assert reply.sample is not None
    columns = reply.sample.columns
    assert columns["observation"].shape == (16, 6, 1)
    for place, key in enumerate(reply.sample.keys.tolist()):
        count = min(6, 16 - key // 4)  # the last fragment's edge cuts it
        expected = [key + 1 + 4 * step for step in range(count)] + [0] * (6 - count)
        assert columns["observation"][place, :, 0].tolist() == expected
        assert columns["valid"][place].sum() == count


def test_an_empty_shard_says_so_and_no_error(served: Serve, connect_shard: Connect) -> None:
    client = connect_shard(served(hot_shard(steps=0)).address)
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


def test_answers_are_split_into_messages_within_their_limit(served: Serve, connect_shard: Connect) -> None:
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
    reply = reply_to(connect_shard(node.address), 5)
    assert reply.sample is not None
    assert (reply.sample.columns["observation"] == 3.0).all()


def test_health_answers_while_observations_of_4_mb_travel(served: Serve, connect_shard: Connect) -> None:
    node = served(MadeUpShard(lambda number: made_up_sample(number, 2**20)))
    client = connect_shard(node.address, max_bytes=2**27)
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


def test_an_answer_has_fewer_items_rather_than_too_many_bytes(served: Serve, connect_shard: Connect) -> None:
    shard = MadeUpShard(lambda number: made_up_sample(number, 256))  # 1 KiB an item
    client = connect_shard(served(shard, max_answer_bytes=2**15).address)
    for _ in range(2):
        reply_to(client, 10_000)
    assert shard.asked == [16, 32]  # cautious while it isn't known how large an item is


def test_unpicked_answers_hold_further_requests_back(served: Serve, connect_shard: Connect) -> None:
    shard = MadeUpShard(made_up_sample)
    client = connect_shard(served(shard).address)
    until(lambda: client.ready)
    requests = [client.ask(1, 0) for _ in range(20)]
    until(lambda: len(shard.asked) == 8)
    assert client.answer(requests[0], WAIT_S) is not None
    until(lambda: len(shard.asked) == 9)
    assert all(client.answer(request, WAIT_S) is not None for request in requests[1:])
    assert len(shard.asked) == 20


def test_a_shard_that_is_back_is_drawn_from_again(served: Serve, connect_shard: Connect) -> None:
    node = served()
    client = connect_shard(node.address)
    reply_to(client, 1)
    node.server.stop(0.0)
    until(lambda: not client.ready)
    assert client.ask(1, 0) == -1
    served(address=node.address)
    assert reply_to(client, 1).sample is not None


def test_what_was_asked_for_of_a_shard_that_dies_never_comes_and_nobody_hangs(
    served: Serve, connect_shard: Connect
) -> None:
    drawing, dead = threading.Event(), threading.Event()

    def stall(number: int) -> Sample:
        drawing.set()
        dead.wait(WAIT_S)
        return made_up_sample(number)

    node = served(MadeUpShard(stall))
    with Proxy("127.0.0.1", node.server.port) as proxy:
        client = connect_shard(proxy.address)
        until(lambda: client.ready)
        request = client.ask(1, 0)
        assert drawing.wait(WAIT_S)
        proxy.cut()
        assert client.answer(request, WAIT_S) is None
        assert not client.ready
        dead.set()


def test_answers_over_a_network_carry_a_checksum(served: Serve, connect_shard: Connect) -> None:
    node = served()
    with open_channel(node.address) as channel:
        opening = replay_pb2.OpenSampling(handshake=OWN.to_proto(), checksum=True)
        stream = RawStream(channel, replay_pb2.SampleRequest(open=opening))
        stream.receive()
        stream.draw(1, 4)
        assert stream.receive().sample.header.crc32
        stream.end()
    assert reply_to(connect_shard(node.address, checksum=True), 4).sample is not None


NEEDS_SLAB = pytest.mark.skipif(not is_supported(), reason="needs Linux")


@NEEDS_SLAB
def test_arrays_in_shared_memory_are_not_written_over_while_they_are_held(
    served: Serve, connect_shard: Connect
) -> None:
    shard = MadeUpShard(lambda number: made_up_sample(number, 1000, value=float(number)))
    client = connect_shard(served(shard, slab_bytes=2**20).address, shared_memory=True)
    reply_to(client, 1)
    assert client.shares_memory
    held = []
    for number in range(100, 110):  # 400 KB each, so that two fit
        sample = reply_to(client, number).sample
        assert sample is not None
        held.append((number, sample.columns["observation"]))
    assert all((observation == number).all() for number, observation in held)


@NEEDS_SLAB
def test_arrays_come_over_the_stream_where_shared_memory_is_full_or_not_agreed_to(served: Serve) -> None:
    node = served(MadeUpShard(lambda number: made_up_sample(number, 10_000)), slab_bytes=2**20)
    with open_channel(node.address) as channel:
        opening = replay_pb2.OpenSampling(handshake=OWN.to_proto(), shared_memory=True)
        stream = RawStream(channel, replay_pb2.SampleRequest(open=opening))
        assert stream.receive().opened.HasField("slab")
        codecs = []
        for shared in (False, True, True, True):  # 400 KB each, and nobody gives the pages back
            stream.send(draw(10, shared_memory=shared))
            codecs.append(stream.receive().sample.codec)
        stream.end()
        assert codecs == ["protobuf", "shared_memory", "shared_memory", "protobuf"]
        plain = RawStream(channel, OPEN)
        assert not plain.receive().opened.HasField("slab")
        plain.end()


@NEEDS_SLAB
def test_a_shard_without_memory_to_share_is_drawn_from_all_the_same(
    served: Serve, connect_shard: Connect
) -> None:
    client = connect_shard(served().address, shared_memory=True)
    assert reply_to(client, 5).sample is not None
    assert not client.shares_memory


def test_many_priorities_arrive_in_order_in_calls_of_bounded_size(
    served: Serve, connect_shard: Connect
) -> None:
    node = served()
    client = connect_shard(node.address)
    for value in (5.0, 3.0):
        client.update_priorities(np.arange(200_000) % 64, np.full(200_000, value))
    until(lambda: client.priorities["applied"] == 400_000)
    assert node.shard.stats().mass == 64 * 3.0


def test_priorities_arrive_although_the_shard_restarts(served: Serve, connect_shard: Connect) -> None:
    node = served()
    client = connect_shard(node.address, give_up_priorities_s=WAIT_S)
    reply_to(client, 1)
    node.server.stop(0.0)
    client.update_priorities(np.arange(4), np.full(4, 2.0))
    back = served(address=node.address)
    until(lambda: client.priorities["applied"] == 4)
    assert back.shard.stats().mass == 68.0


def test_priorities_that_cannot_be_sent_are_counted(connect_shard: Connect) -> None:
    client = connect_shard("127.0.0.1:1")
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
