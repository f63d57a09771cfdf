"""Fragments to wire bytes: the small header by protobuf, the payload straight from array memory."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.codec.columns import Buffer
from headrace.codec.parts import EncodedPart, WriteSlab, encode_columns, join, join_part
from headrace.codec.wire import LENGTH, tag, varint
from headrace.types import Fragment
from headrace.v1 import trajectory_pb2

_REQUEST_FRAGMENTS = tag(3, LENGTH)
_LIST_PART = tag(1, LENGTH)


def encode_parts(
    fragment: Fragment,
    codec: str,
    message_bytes: int,
    *,
    checksum: bool = False,
    write_slab: WriteSlab | None = None,
) -> list[EncodedPart]:
    """The parts of one fragment, as :func:`headrace.codec.parts.encode_columns` makes them."""
    tail = trajectory_pb2.FragmentHeader(steps_per_second=fragment.steps_per_s).SerializeToString()
    return encode_columns(
        _head(fragment),
        fragment.columns,
        codec,
        message_bytes,
        tail=tail,
        checksum=checksum,
        write_slab=write_slab,
    )


def _head(fragment: Fragment) -> bytes:
    """A serialized FragmentHeader without what is said of its payload."""
    header = trajectory_pb2.FragmentHeader(
        sequence=fragment.id.sequence,
        config_digest=fragment.config_digest,
        num_transitions=fragment.num_transitions,
        produced_through=fragment.produced_through,
        permit=fragment.permit,
    )
    header.sampler.sampler_id = fragment.id.sampler.sampler_id
    header.sampler.incarnation = fragment.id.sampler.incarnation
    header.policy_version.epoch = fragment.policy_version.epoch
    header.policy_version.number = fragment.policy_version.number
    header.sampler.SetInParent()
    header.policy_version.SetInParent()
    return header.SerializeToString()


def join_request(parts: Sequence[EncodedPart]) -> bytes:
    """A StreamFragmentsRequest of one part (field ``fragment``) or several (field ``fragments``)."""
    if len(parts) == 1:
        return join_part(parts[0])
    buffers: list[Buffer] = []
    total = 0
    for part in parts:
        size = varint(part.nbytes)
        buffers += (_LIST_PART, size)
        buffers += part.buffers
        total += 1 + len(size) + part.nbytes
    return join((_REQUEST_FRAGMENTS, varint(total), *buffers))


def encode_fragment(
    fragment: Fragment, codec: str, message_bytes: int, *, checksum: bool = False
) -> list[bytes]:
    """Wire bytes of the StreamFragmentsRequest messages that carry one fragment, each at most
    ``message_bytes`` long.
    """
    return [join_part(part) for part in encode_parts(fragment, codec, message_bytes, checksum=checksum)]
