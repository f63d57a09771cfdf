"""Whatever a shard sends: an answer, or CodecError. Never another error, a crash, or a large allocation."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_nodes import hot_shard

from headrace.codec.samples import SampleAssembler, SampleReply, encode_sample, unpack_priorities
from headrace.errors import CodecError
from headrace.v1 import replay_pb2

MAX_BYTES = 2**14
GOOD = list(encode_sample(5, hot_shard().sample(100), count=64, mass=64.0, message_bytes=1500))
CHECKED = list(
    encode_sample(5, hot_shard().sample(100), count=64, mass=64.0, message_bytes=1500, checksum=True)
)


def feed(messages: list[bytes]) -> list[Any]:
    assembler = SampleAssembler(MAX_BYTES)
    return [assembler.feed(message) for message in messages]


def read_all(messages: list[bytes]) -> None:
    """Feed them; whatever comes out can be read to the last byte, and is what it claims to be."""
    try:
        received = feed(messages)
    except CodecError:
        return
    for reply in received:
        if isinstance(reply, SampleReply) and reply.sample is not None:
            sample = reply.sample
            assert sample.size > 0
            assert np.isfinite(reply.mass)
            assert np.isfinite(sample.probabilities).all()
            assert (sample.keys >= 0).all()
            for column in sample.columns.values():
                assert len(column) == sample.size
                column.sum()


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    read_all([data])


@given(st.sampled_from(range(len(GOOD))), st.data())
@settings(max_examples=300)
def test_altered_messages(which: int, data: st.DataObject) -> None:
    message = bytearray(GOOD[which])
    for _ in range(data.draw(st.integers(1, 8))):
        message[data.draw(st.integers(0, min(len(message) - 1, 700)))] = data.draw(st.integers(0, 255))
    read_all([*GOOD[:which], bytes(message), *GOOD[which + 1 :]])


@given(st.permutations(range(len(GOOD))))
def test_parts_out_of_order(order: list[int]) -> None:
    if order != sorted(order):
        with pytest.raises(CodecError):
            feed([GOOD[index] for index in order])


@given(st.integers(0, len(GOOD[0]) - 1))
def test_truncated_messages(length: int) -> None:
    with pytest.raises(CodecError):
        feed([GOOD[0][:length], *GOOD[1:]])


@given(st.data())
def test_an_altered_payload_never_gets_past_the_checksum(data: st.DataObject) -> None:
    payload = replay_pb2.SampleResponse.FromString(CHECKED[1]).sample.payload
    start = CHECKED[1].index(payload)
    altered = bytearray(CHECKED[1])
    altered[data.draw(st.integers(start, len(altered) - 1))] ^= data.draw(st.integers(1, 255))
    reply = feed([CHECKED[0], bytes(altered), *CHECKED[2:]])[-1]
    assert (reply.sample, reply.problem) == (None, "the payload's CRC-32 differs")


OWN = (("key", "i8", np.int64), ("probability", "f8", np.float64), ("version", "i8", np.int64))


def answer(**changes: Any) -> bytes:
    """Two items in one part, with the header's fields, values of columns, or one column's form replaced."""
    values: dict[str, list[float]] = {"key": [1, 2], "probability": [0.5, 0.5], "version": [0, 0]}
    values |= {name: changes.pop(name) for name in list(changes) if name in values}
    left_out, form = changes.pop("left_out", ""), changes.pop("form", {})
    header = replay_pb2.SampleHeader(**{"request_id": 1, "num_items": 2, "count": 2, "mass": 1.0, **changes})
    payload = b""
    for name, code, kind in OWN:
        if name != left_out:
            column = {"name": name, "dtype": code, "shape": [2], "offset": len(payload), "nbytes": 16}
            header.columns.add(**{**column, **(form if name == "key" else {})})
            payload += np.array(values[name], kind).tobytes()
    header.payload_bytes = len(payload)
    part = replay_pb2.SamplePart(header=header, parts=1, codec="protobuf", payload=payload)
    return replay_pb2.SampleResponse(sample=part).SerializeToString()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_items": 3}, "answer of 3 items"),
        ({"num_items": 65537}, "at most 65536"),
        ({"num_items": 0}, "says why"),
        ({"num_items": 0, "reason": "empty"}, "holds no columns"),
        ({"mass": float("nan")}, "mass"),
        ({"mass": float("inf")}, "mass"),
        ({"mass": -1.0}, "mass"),
        ({"probability": [0.5, float("nan")]}, "outside"),
        ({"probability": [0.5, 0.0]}, "outside"),
        ({"probability": [0.5, 1.5]}, "outside"),
        ({"key": [0, -1]}, "negative key"),
        ({"version": [0, -1]}, "negative key or version"),
        ({"left_out": "key"}, "without the column 'key'"),
        ({"left_out": "version"}, "without the column 'version'"),
        ({"form": {"dtype": "f8"}}, "float64"),
        ({"form": {"shape": [2, 1]}}, "'key' is int64"),
        ({"form": {"shape": [1], "nbytes": 8}}, "has shape"),
        ({"form": {"nbytes": 2**60}}, "takes 16"),
    ],
)
def test_lies_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CodecError, match=words):
        feed([answer(**changes)])


def test_the_honest_answer_among_those_is_read() -> None:
    (reply,) = feed([answer()])
    assert reply.sample.keys.tolist() == [1, 2]


def test_an_announced_answer_is_not_allocated_before_it_is_agreed() -> None:
    header = replay_pb2.SampleHeader(num_items=1, payload_bytes=2**40)
    part = replay_pb2.SamplePart(header=header, parts=2, codec="protobuf")
    message = replay_pb2.SampleResponse(sample=part).SerializeToString()
    tracemalloc.start()
    with pytest.raises(CodecError, match="were agreed"):
        feed([message])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_priorities_of_any_bytes(keys: bytes, priorities: bytes) -> None:
    try:
        found, values = unpack_priorities(keys, priorities)
    except CodecError:
        return
    assert len(found) == len(values)
