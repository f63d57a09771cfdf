"""Hand-written wire bytes equal protobuf's, both ways, and stay what they are from release to release."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from pipe import make_fragment

from headrace.codec import FragmentAssembler, encode_fragment, encode_parts, join_request
from headrace.codec.columns import DTYPES
from headrace.codec.decode import Received
from headrace.errors import CodecError
from headrace.types import OBSERVATION, Fragment, FragmentId, PolicyVersion, SamplerIdentity
from headrace.v1 import common_pb2, trajectory_pb2

GOLDEN = Path(__file__).parent.parent / "golden" / "fragment.hex"


def by_protobuf(fragment: Fragment) -> bytes:
    """The message as plain protobuf writes it."""
    header = trajectory_pb2.FragmentHeader(
        sampler=common_pb2.SamplerIdentity(
            sampler_id=fragment.id.sampler.sampler_id, incarnation=fragment.id.sampler.incarnation
        ),
        sequence=fragment.id.sequence,
        policy_version=common_pb2.PolicyVersion(
            epoch=fragment.policy_version.epoch, number=fragment.policy_version.number
        ),
        config_digest=fragment.config_digest,
        num_transitions=fragment.num_transitions,
        produced_through=fragment.produced_through,
        permit=fragment.permit,
        steps_per_second=fragment.steps_per_s,
    )
    payload = b""
    for name, column in fragment.columns.items():
        payload += bytes(-len(payload) % 8)
        header.columns.add(
            name=name,
            dtype=column.dtype.str[1:],
            shape=column.shape,
            offset=len(payload),
            nbytes=column.nbytes,
        )
        payload += column.tobytes()
    header.payload_bytes = len(payload)
    part = trajectory_pb2.FragmentPart(header=header, parts=1, codec="protobuf", payload=payload)
    return trajectory_pb2.StreamFragmentsRequest(fragment=part).SerializeToString()


def decode(messages: list[bytes], max_bytes: int = 2**24) -> list[Received]:
    assembler = FragmentAssembler(max_bytes)
    return [received for message in messages for received in assembler.feed(message)]


def assert_equal(received: Received, sent: Fragment) -> None:
    assert isinstance(received, Fragment)
    assert list(received.columns) == list(sent.columns)
    for name, column in sent.columns.items():
        assert received.columns[name].dtype == column.dtype
        assert received.columns[name].shape == column.shape
        np.testing.assert_array_equal(received.columns[name], column)
    for field in fields(Fragment):
        if field.name != "columns":
            assert getattr(received, field.name) == getattr(sent, field.name), field.name


@pytest.mark.parametrize("permit", [-1, 0, 2**62])
@pytest.mark.parametrize("sequence", [0, 127, 128, 2**40])
@pytest.mark.parametrize("speed", [0.0, 123.456])
def test_our_bytes_are_protobufs_bytes(sequence: int, permit: int, speed: float) -> None:
    fragment = make_fragment(sequence, permit=permit, steps_per_s=speed)
    assert encode_fragment(fragment, "protobuf", 2**20) == [by_protobuf(fragment)]


def test_zeros_and_empty_texts_are_left_out_as_protobuf_does() -> None:
    fragment = make_fragment(
        0,
        sampler=SamplerIdentity("", 0),
        policy_version=PolicyVersion(0, 0),
        config_digest="",
        num_transitions=0,
        produced_through=0,
        permit=0,
        columns={"a": np.zeros((0, 3), np.float32), "b": np.array(7, np.int16)},
    )
    assert encode_fragment(fragment, "protobuf", 2**20) == [by_protobuf(fragment)]


def test_what_protobuf_wrote_is_read() -> None:
    fragment = make_fragment(5, permit=3)
    (received,) = decode([by_protobuf(fragment)])
    assert_equal(received, fragment)


@pytest.mark.parametrize("codec", ["protobuf", "msgpack", "json"])
@pytest.mark.parametrize("message_bytes", [4096, 5000, 2**20])
@pytest.mark.parametrize("width", [1, 30, 300])
def test_every_message_survives_protobuf_and_none_is_too_long(
    codec: str, message_bytes: int, width: int
) -> None:
    fragment = make_fragment(1, width=width)
    messages = encode_fragment(fragment, codec, message_bytes, checksum=True)
    for message in messages:
        assert len(message) <= message_bytes
        assert trajectory_pb2.StreamFragmentsRequest.FromString(message).SerializeToString() == message
    (received,) = decode(messages)
    assert_equal(received, fragment)


def test_payload_of_parts_joined_is_the_payload() -> None:
    fragment = make_fragment(1, width=300)
    requests = [
        trajectory_pb2.StreamFragmentsRequest.FromString(message).fragment
        for message in encode_fragment(fragment, "protobuf", 4096)
    ]
    assert len(requests) > 5
    assert [request.part for request in requests] == list(range(len(requests)))
    whole = trajectory_pb2.StreamFragmentsRequest.FromString(by_protobuf(fragment)).fragment
    assert b"".join(request.payload for request in requests) == whole.payload
    assert requests[0].header == whole.header


def test_small_fragments_share_a_message() -> None:
    fragments = [make_fragment(sequence, width=1 + sequence) for sequence in range(5)]
    message = join_request([encode_parts(fragment, "protobuf", 2**20)[0] for fragment in fragments])
    parsed = trajectory_pb2.StreamFragmentsRequest.FromString(message)
    assert parsed.SerializeToString() == message
    assert len(parsed.fragments.parts) == 5
    for received, fragment in zip(decode([message]), fragments, strict=True):
        assert_equal(received, fragment)


def test_every_dtype_and_shape_crosses() -> None:
    columns = {code: np.arange(6).reshape(2, 3).astype(dtype) for code, dtype in DTYPES.items()}
    columns |= {
        "scalar": np.array(3.5),
        "empty": np.zeros((4, 0, 2), np.int32),
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "strided": np.arange(20)[::3],
        "big-endian": np.arange(4, dtype=">i4"),
    }
    fragment = make_fragment(0, columns=columns)
    for codec in ("protobuf", "msgpack", "json"):
        (received,) = decode(encode_fragment(fragment, codec, 2**20))
        assert isinstance(received, Fragment)
        for name, column in columns.items():
            np.testing.assert_array_equal(received.columns[name], column)
            assert received.columns[name].shape == column.shape
            assert received.columns[name].dtype == column.dtype.newbyteorder("<")


@pytest.mark.parametrize("codec", ["protobuf", "msgpack", "json"])
@pytest.mark.parametrize("width", [3, 40_000])
def test_received_arrays_are_aligned_and_read_only(codec: str, width: int) -> None:
    (received,) = decode(encode_fragment(make_fragment(0, width=width), codec, 2**20), max_bytes=2**26)
    assert isinstance(received, Fragment)
    for column in received.columns.values():
        assert column.flags.aligned
        assert not column.flags.writeable


def test_a_payload_that_fills_its_message_is_viewed_and_a_small_one_copied() -> None:
    (large,) = encode_fragment(make_fragment(0, width=6000), "protobuf", 2**20)
    (received,) = decode([large])
    assert isinstance(received, Fragment)
    assert np.shares_memory(received.columns[OBSERVATION], np.frombuffer(large, np.uint8))
    many = join_request([encode_parts(make_fragment(n), "protobuf", 2**20)[0] for n in range(3)])
    (first, _, _) = decode([many])
    assert isinstance(first, Fragment)
    assert not np.shares_memory(first.columns[OBSERVATION], np.frombuffer(many, np.uint8))


def test_nan_and_infinity_survive_json() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e-45, 3.1], np.float32)
    (received,) = decode(encode_fragment(make_fragment(0, columns={"x": values}), "json", 2**20))
    assert isinstance(received, Fragment)
    np.testing.assert_array_equal(received.columns["x"], values)


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array(["a"]), np.array([1j]), np.array(["2020-01-01"], "M8[D]")]
)
def test_arrays_that_may_not_cross_are_refused_when_sent(array: np.ndarray) -> None:
    with pytest.raises(CodecError, match="can't be sent"):
        encode_fragment(make_fragment(0, columns={"x": array}), "protobuf", 2**20)


def test_a_message_too_small_for_the_header_is_refused_in_words() -> None:
    columns = {f"observation/{index:060}": np.zeros(1, np.float32) for index in range(100)}
    with pytest.raises(CodecError, match=r"raise stream\.message_bytes"):
        encode_fragment(make_fragment(0, columns=columns), "protobuf", 4096)


def test_the_golden_message_is_still_read_and_still_written() -> None:
    golden = bytes.fromhex(GOLDEN.read_text())
    columns = {
        "observation": np.arange(6, dtype=np.float32).reshape(3, 2),
        "action": np.array([1, 0, 1], np.int64),
        "terminated": np.array([False, False, True]),
    }
    fragment = Fragment(
        FragmentId(SamplerIdentity("sampler-7", 3), 42),
        PolicyVersion(2, 300),
        "0123456789abcdef",
        columns,
        num_transitions=3,
        produced_through=129,
        permit=17,
    )
    assert encode_fragment(fragment, "protobuf", 2**20, checksum=True) == [golden]
    (received,) = decode([golden])
    assert_equal(received, fragment)
