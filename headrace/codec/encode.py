"""Fragments to wire bytes: the small header by protobuf, the payload straight from array memory.

protobuf would copy a bytes field up to three times. Here everything is written once, by one join:
the bytes are those that protobuf would write for the same message, in the same order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.codec.columns import Buffer, ColumnLayout, lay_out
from headrace.codec.payloads import PAYLOAD_CODECS
from headrace.codec.wire import LENGTH, VARINT, length_field, tag, varint
from headrace.errors import CodecError
from headrace.types import Array, Fragment
from headrace.v1 import trajectory_pb2

_HEADER = tag(1, LENGTH)
_PART = tag(2, VARINT)
_PARTS = tag(3, VARINT)
_CODEC = 4
_PAYLOAD = tag(15, LENGTH)
_REQUEST_FRAGMENT = tag(2, LENGTH)
_REQUEST_FRAGMENTS = tag(3, LENGTH)
_LIST_PART = tag(1, LENGTH)
_ENVELOPE_BYTES = 16  # tags and lengths around one part, at most

WriteSlab = Callable[[Sequence[Buffer], int], bytes]
"""Puts a payload of so many bytes into shared memory; gives the descriptor to send instead."""


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

    ``codec`` is one of ``stream.codec``; "shared_memory" needs ``write_slab``. CodecError for an
    array that can't be sent. The parts refer to the fragment's arrays until they are joined.
    """
    layouts, arrays, raw_bytes = lay_out(fragment.columns)
    buffers, payload_bytes = _payload(layouts, arrays, raw_bytes, codec, write_slab)
    crc = 0
    if checksum and codec != "shared_memory":
        for buffer in buffers:
            crc = zlib.crc32(buffer, crc)
    header = _header(fragment, layouts, crc, payload_bytes).SerializeToString()
    return _split(header, codec, buffers, payload_bytes, message_bytes)


def _payload(
    layouts: list[ColumnLayout],
    arrays: list[Array],
    raw_bytes: int,
    codec: str,
    write_slab: WriteSlab | None,
) -> tuple[list[Buffer], int]:
    if codec == "shared_memory":
        if write_slab is None:
            raise CodecError("codec shared_memory needs a slab to write to")
        descriptor = write_slab(PAYLOAD_CODECS["protobuf"].write(layouts, arrays), raw_bytes)
        return [descriptor], len(descriptor)
    if codec not in PAYLOAD_CODECS:
        raise CodecError(f"unknown codec {codec!r}")
    buffers = PAYLOAD_CODECS[codec].write(layouts, arrays)
    return buffers, sum(len(buffer) for buffer in buffers)


def _header(
    fragment: Fragment, layouts: list[ColumnLayout], crc: int, payload_bytes: int
) -> trajectory_pb2.FragmentHeader:
    header = trajectory_pb2.FragmentHeader(
        sequence=fragment.id.sequence,
        config_digest=fragment.config_digest,
        num_transitions=fragment.num_transitions,
        produced_through=fragment.produced_through,
        permit=fragment.permit,
        crc32=crc,
        payload_bytes=payload_bytes,
    )
    header.sampler.sampler_id = fragment.id.sampler.sampler_id
    header.sampler.incarnation = fragment.id.sampler.incarnation
    header.policy_version.epoch = fragment.policy_version.epoch
    header.policy_version.number = fragment.policy_version.number
    add = header.columns.add
    for layout in layouts:
        add(
            name=layout.name,
            dtype=layout.dtype,
            shape=layout.shape,
            offset=layout.offset,
            nbytes=layout.nbytes,
        )
    return header


def _split(
    header: bytes, codec: str, buffers: list[Buffer], payload_bytes: int, message_bytes: int
) -> list[EncodedPart]:
    """Cut the payload so that part 0 with the header, and every later part, fits a message."""
    codec_field = length_field(_CODEC, codec.encode())
    overhead = len(codec_field) + 2 * 6 + 6 + _ENVELOPE_BYTES  # part, parts, payload's tag and length
    first = message_bytes - overhead - len(header) - 6
    rest = message_bytes - overhead
    if first < 0 or rest < 1:
        raise CodecError(
            f"a fragment header of {len(header)} bytes does not fit a message of {message_bytes} bytes; "
            "raise stream.message_bytes"
        )
    parts = 1 + max(0, -(-(payload_bytes - first) // rest))
    encoded = []
    cursor = _Cursor(buffers)
    for part in range(parts):
        size = min(payload_bytes - cursor.position, rest if part else first)
        prefix = b"" if part else _HEADER + varint(len(header)) + header
        prefix += _PART + varint(part) if part else b""
        prefix += _PARTS + varint(parts) + codec_field
        prefix += _PAYLOAD + varint(size) if size else b""
        encoded.append(EncodedPart((prefix, *cursor.take(size)), len(prefix) + size))
    return encoded


class _Cursor:
    """Walks a list of buffers as if they were one."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self._buffers = buffers
        self._index = 0
        self._offset = 0
        self.position = 0

    def take(self, size: int) -> list[Buffer]:
        """The next ``size`` bytes, as views."""
        taken: list[Buffer] = []
        self.position += size
        while size:
            buffer = self._buffers[self._index]
            piece = (
                buffer[self._offset : self._offset + size] if self._offset or len(buffer) > size else buffer
            )
            taken.append(piece)
            size -= len(piece)
            self._offset += len(piece)
            if self._offset == len(buffer):
                self._index, self._offset = self._index + 1, 0
        return taken


def join_request(parts: Sequence[EncodedPart]) -> bytes:
    """A StreamFragmentsRequest of one part (field ``fragment``) or several (field ``fragments``)."""
    if len(parts) == 1:
        part = parts[0]
        return b"".join((_REQUEST_FRAGMENT, varint(part.nbytes), *part.buffers))
    buffers: list[Buffer] = []
    total = 0
    for part in parts:
        size = varint(part.nbytes)
        buffers += (_LIST_PART, size)
        buffers += part.buffers
        total += 1 + len(size) + part.nbytes
    return b"".join((_REQUEST_FRAGMENTS, varint(total), *buffers))


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
