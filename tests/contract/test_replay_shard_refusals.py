"""What a shard and those who draw from it refuse, and in which words; and that it stays healthy."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from replay_nodes import (
    OPEN,
    OWN,
    Connect,
    MadeUpShard,
    RawStream,
    Serve,
    draw,
    is_healthy,
    made_up_sample,
    reply_to,
    until,
)

from headrace.rpc.channel import open_channel
from headrace.rpc.handshake import Handshake
from headrace.rpc.replay_shard import SERVICE
from headrace.v1 import replay_pb2


def test_a_foreign_run_is_refused_in_words(served: Serve, connect_shard: Connect) -> None:
    client = connect_shard(served().address, handshake=Handshake(run_id="other", config_digest="digest"))
    until(lambda: client.fatal is not None)
    assert "these are two runs" in str(client.fatal)
    assert not client.ready


def test_priorities_of_a_foreign_run_change_nothing(served: Serve, connect_shard: Connect) -> None:
    node = served()
    client = connect_shard(node.address, handshake=Handshake(run_id="other", config_digest="digest"))
    client.update_priorities(np.arange(4), np.full(4, 9.0))
    until(lambda: client.priorities["unsent"] == 4)
    assert node.shard.stats().mass == 64.0


@pytest.mark.parametrize(
    ("requests", "sentence"),
    [
        ([draw(1)], "must be its handshake"),
        ([OPEN, OPEN], "only draws follow"),
        ([OPEN, draw(0)], "1 to 65536"),
        ([OPEN, draw(65537)], "1 to 65536"),
        ([OPEN, draw(1, newest_version=2**63)], "too large"),
        ([OPEN, draw(1, sequence_length=1025)], "at most 1024"),
        ([b"\xff\xff"], "no SampleRequest"),
        ([OPEN, b"\xff\xff"], "no SampleRequest"),
        ([b""], "must be its handshake"),
    ],
    ids=[
        "no-open",
        "two-opens",
        "no-items",
        "too-many",
        "version",
        "sequence",
        "garbage",
        "late-garbage",
        "empty",
    ],
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
    served: Serve, connect_shard: Connect
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
        client = connect_shard(node.address)
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


def test_a_sample_that_fails_the_check_is_refused_with_its_problem(
    served: Serve, connect_shard: Connect
) -> None:
    client = connect_shard(
        served(MadeUpShard(lambda number: made_up_sample(number, value=np.nan))).address,
        check=lambda sample: "" if np.isfinite(sample.columns["observation"]).all() else "it is not finite",
    )
    reply = reply_to(client, 3)
    assert (reply.sample, reply.problem) == (None, "it is not finite")
    assert (client.refused, client.problem) == (1, "it is not finite")


def test_bad_priorities_change_nothing_and_are_counted(served: Serve, connect_shard: Connect) -> None:
    node = served()
    client = connect_shard(node.address)
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
