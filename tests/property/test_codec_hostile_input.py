"""Whatever arrives: a fragment, or CodecError. Never another error, a crash, or a large allocation."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pipe import make_fragment

from headrace.codec import Damaged, FragmentAssembler, encode_fragment
from headrace.codec.columns import DTYPES
from headrace.errors import CodecError
from headrace.types import Fragment
from headrace.v1 import trajectory_pb2

MAX_BYTES = 2**16
CODECS = ("protobuf", "msgpack", "json")
VALID = {codec: encode_fragment(make_fragment(3), codec, 4096, checksum=False) for codec in CODECS}
CHECKED = encode_fragment(make_fragment(3), "protobuf", 4096, checksum=True)


def feed(messages: list[bytes]) -> list[Any]:
    assembler = FragmentAssembler(MAX_BYTES)
    return [received for message in messages for received in assembler.feed(message)]


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    with suppress(CodecError):
        feed([data])


@given(st.sampled_from(CODECS), st.data())
@settings(max_examples=300)
def test_altered_messages(codec: str, data: st.DataObject) -> None:
    message = bytearray(VALID[codec][0])
    for _ in range(data.draw(st.integers(1, 8))):
        message[data.draw(st.integers(0, min(len(message) - 1, 600)))] = data.draw(st.integers(0, 255))
    try:
        received = feed([bytes(message), *VALID[codec][1:]])
    except CodecError:
        return
    for fragment in received:
        if isinstance(fragment, Fragment):
            assert fragment.nbytes <= MAX_BYTES
            for column in fragment.columns.values():
                column.sum()  # every byte of it can be read


@given(st.integers(0, len(CHECKED[0]) - 1))
def test_truncated_messages(length: int) -> None:
    with pytest.raises(CodecError):
        feed([CHECKED[0][:length]])


@given(st.data())
def test_an_altered_payload_never_gets_past_the_checksum(data: st.DataObject) -> None:
    payload = trajectory_pb2.StreamFragmentsRequest.FromString(CHECKED[0]).fragment.payload
    start = CHECKED[0].index(payload)
    position = data.draw(st.integers(start, len(CHECKED[0]) - 1))
    altered = bytearray(CHECKED[0])
    altered[position] ^= data.draw(st.integers(1, 255))
    (received,) = feed([bytes(altered), *CHECKED[1:]])
    assert isinstance(received, Damaged)
    assert received.id == make_fragment(3).id


def request(**changes: Any) -> bytes:
    """A fragment of four floats in one part, with header fields or column fields replaced."""
    column: dict[str, Any] = {"name": "x", "dtype": "f4", "shape": [4], "offset": 0, "nbytes": 16}
    column |= {key: changes.pop(key) for key in list(changes) if key in column}
    part: dict[str, Any] = {"part": 0, "parts": 1, "codec": "protobuf", "payload": bytes(16)}
    part |= {key: changes.pop(key) for key in list(changes) if key in part}
    header = trajectory_pb2.FragmentHeader(payload_bytes=changes.pop("payload_bytes", 16), columns=[column])
    message = trajectory_pb2.FragmentPart(header=header, **part)
    assert not changes
    return trajectory_pb2.StreamFragmentsRequest(fragment=message).SerializeToString()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "O"}, "may not be sent"),
        ({"dtype": ">f4"}, "may not be sent"),
        ({"dtype": "V1000000000"}, "may not be sent"),
        ({"dtype": ""}, "may not be sent"),
        ({"nbytes": 17}, "takes 16"),
        ({"shape": [5]}, "takes 20"),
        ({"shape": [2**32 - 1] * 31}, "takes"),
        ({"shape": [1] * 33}, "33 dimensions"),
        ({"shape": [2**32 - 1, 0], "nbytes": 16}, "takes 0"),
        ({"offset": 1}, "of a payload of 16"),
        ({"offset": 2**64 - 16}, "of a payload of 16"),
        ({"payload_bytes": 15}, "more payload than"),
        ({"payload_bytes": 17}, "17 announced"),
        ({"payload_bytes": 2**63}, "were agreed"),
        ({"payload_bytes": 10**6, "parts": 2}, "were agreed"),
        ({"shape": [2**15], "nbytes": 2**17}, "were agreed"),
        ({"parts": 0}, "0 parts"),
        ({"parts": 2**31}, "parts"),
        ({"part": 1, "parts": 2}, "not begun"),
        ({"codec": "pickle"}, "unknown codec"),
        ({"codec": ""}, "unknown codec"),
        ({"codec": "shared_memory"}, "not agreed to"),
        ({"codec": "msgpack"}, "msgpack"),
        ({"codec": "json"}, "JSON"),
        ({"dtype": "b1", "shape": [16], "payload": b"\2" * 16}, "neither 0 nor 1"),
    ],
)
def test_lies_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CodecError, match=words):
        feed([request(**changes)])


def test_the_honest_message_among_those_is_read() -> None:
    (fragment,) = feed([request()])
    assert fragment.columns["x"].tolist() == [0.0] * 4


def test_columns_that_overlap_or_share_a_name_are_refused() -> None:
    for second in ({"name": "y", "offset": 8}, {"name": "x", "offset": 16}):
        columns = [
            {"name": "x", "dtype": "f4", "shape": [4], "offset": 0, "nbytes": 16},
            {"dtype": "f4", "shape": [1], "nbytes": 4, **second},
        ]
        header = trajectory_pb2.FragmentHeader(payload_bytes=32, columns=columns)
        part = trajectory_pb2.FragmentPart(header=header, parts=1, codec="protobuf", payload=bytes(32))
        with pytest.raises(CodecError):
            feed([trajectory_pb2.StreamFragmentsRequest(fragment=part).SerializeToString()])


def test_parts_out_of_order_and_unfinished_ones_are_refused() -> None:
    messages = encode_fragment(make_fragment(0, width=200), "protobuf", 4096)
    for wrong in (
        [messages[0], messages[2]],
        [messages[1]],
        [messages[0], messages[0]],
        [messages[0], trajectory_pb2.StreamFragmentsRequest(goodbye={"reason": "x"}).SerializeToString()],
    ):
        with pytest.raises(CodecError):
            feed(wrong)


def test_an_announced_payload_is_not_allocated_before_it_is_agreed() -> None:
    lies = [
        request(payload_bytes=2**40, parts=2**20),
        request(shape=[2**31], nbytes=2**33),
        request(codec="json", payload_bytes=2**40, parts=7),
    ]
    tracemalloc.start()
    for lie in lies:
        with pytest.raises(CodecError):
            feed([lie])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**20


@given(
    codec=st.sampled_from(CODECS),
    columns=st.dictionaries(
        st.text(max_size=12),
        st.sampled_from(sorted(DTYPES)).flatmap(
            lambda code: arrays.arrays(DTYPES[code], arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
        ),
        max_size=6,
    ),
    message_bytes=st.sampled_from([4096, 2**20]),
)
def test_whatever_is_sent_arrives(codec: str, columns: dict[str, np.ndarray], message_bytes: int) -> None:
    (received,) = feed(
        encode_fragment(make_fragment(0, columns=columns), codec, message_bytes, checksum=True)
    )
    assert isinstance(received, Fragment)
    assert list(received.columns) == list(columns)
    for name, column in columns.items():
        assert received.columns[name].dtype == column.dtype
        np.testing.assert_array_equal(received.columns[name], column)
