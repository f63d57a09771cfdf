"""Hand-written bytes of samples equal protobuf's, and come back as what they were."""

from __future__ import annotations

import numpy as np
import pytest
from replay_nodes import hot_shard, made_up_sample

from headrace.codec.columns import DTYPES
from headrace.codec.samples import (
    OPENED,
    Opened,
    SampleAssembler,
    SampleReply,
    encode_sample,
    pack_priorities,
    unpack_priorities,
)
from headrace.errors import CodecError
from headrace.types import Sample
from headrace.v1 import replay_pb2


def by_protobuf(request_id: int, sample: Sample, count: int, mass: float) -> bytes:
    """The message as plain protobuf writes it."""
    header = replay_pb2.SampleHeader(request_id=request_id, num_items=sample.size, count=count, mass=mass)
    own = {"key": sample.keys, "probability": sample.probabilities, "version": sample.versions}
    payload = b""
    for name, column in {**own, **sample.columns}.items():
        payload += bytes(-len(payload) % 8)
        code = column.dtype.str[1:]
        offset, nbytes = len(payload), column.nbytes
        header.columns.add(name=name, dtype=code, shape=column.shape, offset=offset, nbytes=nbytes)
        payload += column.tobytes()
    header.payload_bytes = len(payload)
    part = replay_pb2.SamplePart(header=header, parts=1, codec="protobuf", payload=payload)
    return replay_pb2.SampleResponse(sample=part).SerializeToString()


def decode(messages: list[bytes], max_bytes: int = 2**24) -> SampleReply:
    assembler = SampleAssembler(max_bytes)
    *earlier, reply = [assembler.feed(message) for message in messages]
    assert not any(earlier)
    assert isinstance(reply, SampleReply)
    return reply


def assert_equal(received: Sample | None, sent: Sample) -> None:
    assert received is not None
    assert received.columns.keys() == sent.columns.keys()
    for one, other in (
        (received.keys, sent.keys),
        (received.probabilities, sent.probabilities),
        (received.versions, sent.versions),
        *((received.columns[name], column) for name, column in sent.columns.items()),
    ):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def test_the_bytes_are_those_that_protobuf_writes() -> None:
    sample = hot_shard().sample(5)
    assert sample is not None
    (message,) = encode_sample(7, sample, count=16, mass=16.5, message_bytes=2**20)
    assert message == by_protobuf(7, sample, 16, 16.5)


@pytest.mark.parametrize("message_bytes", [700, 1000, 4096, 2**20])
@pytest.mark.parametrize("checksum", [False, True])
def test_what_is_split_comes_back_whole(message_bytes: int, checksum: bool) -> None:
    sample = hot_shard().sample(300)
    assert sample is not None
    messages = list(
        encode_sample(9, sample, count=64, mass=64.0, message_bytes=message_bytes, checksum=checksum)
    )
    assert all(len(message) <= message_bytes for message in messages)
    for message in messages:
        assert replay_pb2.SampleResponse.FromString(message).SerializeToString() == message
    reply = decode(messages)
    assert (reply.request_id, reply.count, reply.mass) == (9, 64, 64.0)
    assert_equal(reply.sample, sample)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
def test_every_dtype_and_shape_crosses(dtype: np.dtype[np.generic]) -> None:
    base = made_up_sample(3)
    columns = {"a": np.ones((3, 2, 5), dtype), "b/c": np.zeros(3, dtype), "none": np.zeros((3, 0), dtype)}
    sample = Sample(base.keys, base.probabilities, base.versions, columns)
    reply = decode(list(encode_sample(1, sample, count=1, mass=1.0, message_bytes=2**20)))
    assert_equal(reply.sample, sample)


def test_an_empty_answer_and_the_opening_come_back() -> None:
    (message,) = encode_sample(3, None, count=0, mass=0.0, message_bytes=2**20)
    assert decode([message]) == SampleReply(3, None, 0, 0.0, reason="empty")
    assert SampleAssembler(0).feed(OPENED) == Opened()


def test_an_altered_payload_is_a_problem_not_a_sample() -> None:
    (message,) = encode_sample(1, made_up_sample(4), count=1, mass=1.0, message_bytes=2**20, checksum=True)
    reply = decode([message[:-1] + bytes([message[-1] ^ 1])])
    assert (reply.sample, reply.problem) == (None, "the payload's CRC-32 differs")


def test_a_sample_that_fills_its_message_is_not_copied() -> None:
    sample = made_up_sample(200, 1000)
    (message,) = encode_sample(1, sample, count=1, mass=1.0, message_bytes=2**20)
    received = decode([message]).sample
    assert received is not None
    assert np.shares_memory(received.columns["observation"], np.frombuffer(message, np.uint8))


def test_priorities_come_back_as_they_were_and_lies_about_lengths_are_refused() -> None:
    packed = pack_priorities(np.array([1, 2**40]), np.array([0.5, 1e300]))
    keys, priorities = unpack_priorities(*packed)
    assert keys.tolist() == [1, 2**40]
    assert priorities.tolist() == [0.5, np.inf]
    for wrong in ((packed[0][:-1], packed[1]), (packed[0], packed[1] + b"1234"), (b"", packed[1])):
        with pytest.raises(CodecError, match="bytes of keys"):
            unpack_priorities(*wrong)
