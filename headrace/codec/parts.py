"""Arrays in parts: cut over messages of bounded size, and written straight from memory.

The same for fragments and for samples of replay. A part has the fields header = 1 (part 0 only), part = 2,
parts = 3, codec = 4, padding = 5 and payload = 15; a header has columns = 8, crc32 = 9 and
payload_bytes = 10, and what else it has comes before or after. protobuf would copy a bytes field up to
three times. Here everything is written once, by one join, and the bytes are those that protobuf would write.
The inverse is :mod:`headrace.codec.assembler`.
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
from headrace.types import Columns

_HEADER = tag(1, LENGTH)
_PART = tag(2, VARINT)
_PARTS = tag(3, VARINT)
_CODEC = 4
_PADDING = 5
_CRC32 = tag(9, VARINT)
_PAYLOAD_BYTES = tag(10, VARINT)
_PAYLOAD = tag(15, LENGTH)
_MESSAGE_PART = tag(2, LENGTH)  # the field of a message that holds one part
_ENVELOPE_BYTES = 12  # tags and lengths around one part, at most
_FRAMING_BYTES = _ENVELOPE_BYTES + 4 * 6 + 9  # and inside it: header, part, parts, payload, padding

WriteSlab = Callable[[Sequence[Buffer], int], bytes | None]
"""Puts a payload of so many bytes into shared memory; gives what to send instead, None if it is full."""


@dataclass(frozen=True, slots=True)
class EncodedPart:
    """A part as buffers in order, not yet joined. ``nbytes`` is their total length."""

    buffers: tuple[Buffer, ...]
    nbytes: int


def encode_columns(
    head: bytes,
    columns: Columns,
    codec: str,
    message_bytes: int,
    *,
    tail: bytes = b"",
    checksum: bool = False,
    write_slab: WriteSlab | None = None,
) -> list[EncodedPart]:
    """``columns`` in parts, each small enough for a message of ``message_bytes``.

    ``head`` and ``tail`` are the header as protobuf writes it before its columns and after the length that
    follows them. ``codec`` is one of
    ``stream.codec``; where "shared_memory" finds no ``write_slab`` or no room, the payload goes into the
    message as with "protobuf". CodecError for an array that can't be sent. The parts refer to the arrays
    until they are joined.
    """
    laid_out = lay_out(columns)
    if codec == "shared_memory":
        span = write_slab(laid_out.buffers(), laid_out.nbytes) if write_slab is not None else None
        if span is not None:
            header = _complete(head, laid_out.described, 0, len(span), tail)
            return _split(header, codec, [span], len(span), message_bytes)
        codec = "protobuf"
    if codec not in PAYLOAD_CODECS:
        raise CodecError(f"unknown codec {codec!r}")
    buffers, payload_bytes = PAYLOAD_CODECS[codec].write(laid_out)
    crc = 0
    if checksum:
        for buffer in buffers:
            crc = zlib.crc32(buffer.data if isinstance(buffer, np.ndarray) else buffer, crc)
    header = _complete(head, laid_out.described, crc, payload_bytes, tail)
    return _split(header, codec, buffers, payload_bytes, message_bytes)


def join_part(part: EncodedPart) -> bytes:
    """A message whose field 2 is ``part``, and that holds nothing else."""
    return join((_MESSAGE_PART, varint(part.nbytes), *part.buffers))


def join(buffers: Sequence[Buffer]) -> bytes:
    """The one copy. An array is a buffer, too, which numpy's stubs don't say before Python 3.12."""
    return b"".join(cast("Sequence[bytes]", buffers))


def part_cost(part: EncodedPart) -> int:
    """Bytes that ``part`` adds to a message, at most."""
    return part.nbytes + _ENVELOPE_BYTES


def _complete(head: bytes, described: bytes, crc: int, payload_bytes: int, tail: bytes) -> bytes:
    """A serialized header: columns, crc32 and payload_bytes between what it has by protobuf."""
    checksum = _CRC32 + varint(crc) if crc else b""
    length = _PAYLOAD_BYTES + varint(payload_bytes) if payload_bytes else b""
    return b"".join((head, described, checksum, length, tail))


def _split(
    header: bytes, codec: str, buffers: list[Buffer], payload_bytes: int, message_bytes: int
) -> list[EncodedPart]:
    """Cut the payload so that part 0 with the header, and every later part, fits a message."""
    codec_field = length_field(_CODEC, codec.encode())
    rest = message_bytes - len(codec_field) - _FRAMING_BYTES
    first = rest - len(header)
    if first < 0:
        raise CodecError(
            f"a header of {len(header)} bytes does not fit a message of {message_bytes} bytes; "
            "raise stream.message_bytes"
        )
    parts = 1 + max(0, -(-(payload_bytes - first) // rest))
    cursor = _Cursor(buffers) if parts > 1 else None
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


class _Cursor:
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
