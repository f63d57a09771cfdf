"""Fragments to wire bytes: the small header by protobuf, the payload straight from array memory.

protobuf would copy a bytes field up to three times. Here everything is written once, by one join:
the bytes are those that protobuf would write for the same message, in the same order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from headrace.codec.columns import ALIGNMENT, Buffer, lay_out
from headrace.codec.payloads import PAYLOAD_CODECS
from headrace.codec.wire import LENGTH, VARINT, length_field, tag, varint
from headrace.errors import CodecError
from headrace.types import Fragment
from headrace.v1 import trajectory_pb2

_HEADER = tag(1, LENGTH)
_PART = tag(2, VARINT)
_PARTS = tag(3, VARINT)
_CODEC = 4
_PADDING = 5
_CRC32 = tag(9, VARINT)
_PAYLOAD_BYTES = tag(10, VARINT)
_PAYLOAD = tag(15, LENGTH)
_REQUEST_FRAGMENT = tag(2, LENGTH)
_REQUEST_FRAGMENTS = tag(3, LENGTH)
_LIST_PART = tag(1, LENGTH)
_ENVELOPE_BYTES = 12  # tags and lengths around one part, at most
_FRAMING_BYTES = _ENVELOPE_BYTES + 4 * 6 + 9  # and inside it: header, part, parts, payload, padding

WriteSlab = Callable[[Sequence[Buffer], int], bytes | None]
"""Puts a payload of so many bytes into shared memory; gives what to send instead, None if it is full."""


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A FragmentPart as buffers in order, not yet joined. ``nbytes`` is their total length."""

    buffers: tuple[Buffer, ...]
    nbytes: int


def encode_parts(
    fragment: Fragment,
    codec: str,
    message_bytes: int,
    *,
    checksum: bool = False,
    write_slab: WriteSlab | None = None,
) -> list[EncodedPart]:
    """The parts of one fragment, each small enough for a message of ``message_bytes``.

    ``codec`` is one of ``stream.codec``; where "shared_memory" finds no ``write_slab`` or no room, the
    payload goes into the message as with "protobuf". CodecError for an array that can't be sent. The
    parts refer to the fragment's arrays until they are joined.
    """
    laid_out = lay_out(fragment.columns)
    if codec == "shared_memory":
        span = write_slab(laid_out.buffers(), laid_out.nbytes) if write_slab is not None else None
        if span is not None:
            header = _header(fragment, laid_out.described, 0, len(span))
            return _split(header, codec, [span], len(span), message_bytes)
        codec = "protobuf"
    if codec not in PAYLOAD_CODECS:
        raise CodecError(f"unknown codec {codec!r}")
    buffers, payload_bytes = PAYLOAD_CODECS[codec].write(laid_out)
    crc = 0
    if checksum:
        for buffer in buffers:
            crc = zlib.crc32(buffer.data if isinstance(buffer, np.ndarray) else buffer, crc)
    header = _header(fragment, laid_out.described, crc, payload_bytes)
    return _split(header, codec, buffers, payload_bytes, message_bytes)


def _header(fragment: Fragment, described: bytes, crc: int, payload_bytes: int) -> bytes:
    """A serialized FragmentHeader: fields 1 to 7 by protobuf, then columns, crc32, payload_bytes."""
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
    tail = _CRC32 + varint(crc) if crc else b""
    tail += _PAYLOAD_BYTES + varint(payload_bytes) if payload_bytes else b""
    return b"".join((header.SerializeToString(), described, tail))


def _split(
    header: bytes, codec: str, buffers: list[Buffer], payload_bytes: int, message_bytes: int
) -> list[EncodedPart]:
    """Cut the payload so that part 0 with the header, and every later part, fits a message."""
    codec_field = length_field(_CODEC, codec.encode())
    rest = message_bytes - len(codec_field) - _FRAMING_BYTES
    first = rest - len(header)
    if first < 0:
        raise CodecError(
            f"a fragment header of {len(header)} bytes does not fit a message of {message_bytes} bytes; "
            "raise stream.message_bytes"
        )
    parts = 1 + max(0, -(-(payload_bytes - first) // rest))
    cursor = BufferCursor(buffers) if parts > 1 else None
    encoded = []
    left = payload_bytes
    for part in range(parts):
        size = min(left, rest if part else first)
        left -= size
        prefix = b"" if part else _HEADER + varint(len(header)) + header
        prefix += _PART + varint(part) if part else b""
        prefix += _PARTS + varint(parts) + codec_field
        if parts == 1 and 2 * size > message_bytes:
            prefix += _padding(len(prefix), size)
        prefix += _PAYLOAD + varint(size) if size else b""
        content = buffers if cursor is None else cursor.take(size)
        encoded.append(EncodedPart((prefix, *content), len(prefix) + size))
    return encoded


def _padding(prefix_bytes: int, size: int) -> bytes:
    """What to write before the payload, so that it starts aligned in a message of this part alone."""
    payload_head = 1 + len(varint(size))
    part_bytes = prefix_bytes + payload_head + size
    position = 1 + len(varint(part_bytes + ALIGNMENT + 1)) + prefix_bytes + payload_head
    missing = -position % ALIGNMENT
    return length_field(_PADDING, bytes((missing - 2) % ALIGNMENT)) if missing else b""


class BufferCursor:
    """Walks a list of buffers as if they were one."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self._buffers = [
            buffer.reshape(-1).view(np.uint8).data if isinstance(buffer, np.ndarray) else buffer
            for buffer in buffers
        ]
        self._index = 0
        self._offset = 0

    def take(self, size: int) -> list[Buffer]:
        """The next ``size`` bytes, as views."""
        taken: list[Buffer] = []
        while size:
            piece = self._buffers[self._index][self._offset : self._offset + size]
            taken.append(piece)
            size -= len(piece)
            self._offset += len(piece)
            if self._offset == len(self._buffers[self._index]):
                self._index, self._offset = self._index + 1, 0
        return taken


def join_request(parts: Sequence[EncodedPart]) -> bytes:
    """A StreamFragmentsRequest of one part (field ``fragment``) or several (field ``fragments``)."""
    if len(parts) == 1:
        part = parts[0]
        return join((_REQUEST_FRAGMENT, varint(part.nbytes), *part.buffers))
    buffers: list[Buffer] = []
    total = 0
    for part in parts:
        size = varint(part.nbytes)
        buffers += (_LIST_PART, size)
        buffers += part.buffers
        total += 1 + len(size) + part.nbytes
    return join((_REQUEST_FRAGMENTS, varint(total), *buffers))


def join(buffers: Sequence[Buffer]) -> bytes:
    """The one copy. An array is a buffer, too, which numpy's stubs don't say before Python 3.12."""
    return b"".join(cast("Sequence[bytes]", buffers))


def part_cost(part: EncodedPart) -> int:
    """Bytes that ``part`` adds to a message, at most."""
    return part.nbytes + _ENVELOPE_BYTES


def encode_fragment(
    fragment: Fragment, codec: str, message_bytes: int, *, checksum: bool = False
) -> list[bytes]:
    """Wire bytes of the StreamFragmentsRequest messages that carry one fragment, each at most
    ``message_bytes`` long.
    """
    return [join_request([part]) for part in encode_parts(fragment, codec, message_bytes, checksum=checksum)]
