"""Arrays in parts: cut over messages of bounded size, written straight from memory, and put together again.

The same for fragments and samples of replay. A part has the fields header = 1 (part 0 only), part = 2,
parts = 3, codec = 4, padding = 5 and payload = 15; a header ends with columns = 8, crc32 = 9 and
payload_bytes = 10, and what else it has comes before. protobuf would copy a bytes field up to three times.
Here everything is written once, by one join, and the bytes are those that protobuf would write.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar, cast

import numpy as np
from google.protobuf.message import DecodeError

from headrace.codec.columns import (
    ALIGNMENT,
    COLUMNS_FIELD,
    MAX_COLUMNS,
    Buffer,
    ColumnSet,
    Payload,
    lay_out,
    read_layouts,
)
from headrace.codec.payloads import PAYLOAD_CODECS
from headrace.codec.wire import LENGTH, VARINT, fields, length_field, tag, take_out, varint
from headrace.errors import CodecError
from headrace.types import Array, Columns

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
_SLACK_BYTES = 2**16
_BYTES_HEADER = sys.getsizeof(b"") - 1  # where the content of a bytes object begins; objects are aligned

WriteSlab = Callable[[Sequence[Buffer], int], bytes | None]
"""Puts a payload of so many bytes into shared memory; gives what to send instead, None if it is full."""

ReadSlab = Callable[[bytes, int], Payload]
"""Takes a descriptor from a peer on the same node; gives the payload of at most so many bytes."""


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
    checksum: bool = False,
    write_slab: WriteSlab | None = None,
) -> list[EncodedPart]:
    """``columns`` in parts, each small enough for a message of ``message_bytes``.

    ``head`` is the header as protobuf writes it without its columns, checksum and length. ``codec`` is one of
    ``stream.codec``; where "shared_memory" finds no ``write_slab`` or no room, the payload goes into the
    message as with "protobuf". CodecError for an array that can't be sent. The parts refer to the arrays
    until they are joined.
    """
    laid_out = lay_out(columns)
    if codec == "shared_memory":
        span = write_slab(laid_out.buffers(), laid_out.nbytes) if write_slab is not None else None
        if span is not None:
            header = _complete(head, laid_out.described, 0, len(span))
            return _split(header, codec, [span], len(span), message_bytes)
        codec = "protobuf"
    if codec not in PAYLOAD_CODECS:
        raise CodecError(f"unknown codec {codec!r}")
    buffers, payload_bytes = PAYLOAD_CODECS[codec].write(laid_out)
    crc = 0
    if checksum:
        for buffer in buffers:
            crc = zlib.crc32(buffer.data if isinstance(buffer, np.ndarray) else buffer, crc)
    header = _complete(head, laid_out.described, crc, payload_bytes)
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


def _complete(head: bytes, described: bytes, crc: int, payload_bytes: int) -> bytes:
    """A serialized header: what it has by protobuf, then columns, crc32, payload_bytes."""
    tail = _CRC32 + varint(crc) if crc else b""
    tail += _PAYLOAD_BYTES + varint(payload_bytes) if payload_bytes else b""
    return b"".join((head, described, tail))


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


class HeaderMessage(Protocol):
    """What every header says of its payload."""

    @property
    def payload_bytes(self) -> int:
        """Its length over all parts."""
        ...

    @property
    def crc32(self) -> int:
        """Its checksum; 0: none."""
        ...


Header = TypeVar("Header", bound=HeaderMessage)


@dataclass(frozen=True, slots=True)
class Whole(Generic[Header]):
    """A header and the arrays that belong to it. ``columns`` None: the payload was altered on the way."""

    header: Header
    columns: dict[str, Array] | None
    nbytes: int  # of the arrays


@dataclass(slots=True)
class _Part:
    """A part with its payload still in the message: ``data[start:end]``."""

    header: tuple[int, int] | None = None  # data[a:b]
    part: int = 0
    parts: int = 0
    codec: str = ""
    start: int = 0
    end: int = 0


@dataclass(slots=True)
class _Open(Generic[Header]):
    """What has begun to arrive. Without a buffer if it comes in one part."""

    header: Header
    columns: ColumnSet
    codec: str
    parts: int
    buffer: bytearray = field(default_factory=bytearray)
    next_part: int = 0
    filled: int = 0


class PartAssembler(Generic[Header]):
    """Puts the parts on one stream together, in order. Not thread-safe: one reader a stream.

    ``max_bytes`` bounds the arrays of one payload; ``parse`` reads a header without its columns; ``noun`` is
    what the parts make up, for errors. Arrays that come out are read-only. Those of a payload that fills its
    message are views into it; others are copied out, so that little never keeps a large message alive.
    """

    def __init__(self, max_bytes: int, parse: Callable[[bytes], Header], noun: str) -> None:
        self._max_bytes = max_bytes
        self._parse = parse
        self._noun = noun
        self._open: _Open[Header] | None = None
        self.read_slab: ReadSlab | None = None

    @property
    def due(self) -> int:
        """The part that must come next; 0 if nothing is incomplete."""
        return 0 if self._open is None else self._open.next_part

    def take(self, data: bytes, start: int, end: int) -> Whole[Header] | None:
        """Add the part in ``data[start:end]``; the whole if it is complete. CodecError if it can't be."""
        part = _read_part(data, start, end)
        if self._open is None:
            self._open = self._begin(data, part)
        opened = self._open
        if part.part != opened.next_part or part.parts != opened.parts:
            raise CodecError(
                f"part {part.part} of {part.parts} where part {opened.next_part} of {opened.parts} was due"
            )
        if part.part and (part.header is not None or part.codec != opened.codec):
            raise CodecError(f"part {part.part} of a {self._noun} does not continue part 0")
        size = part.end - part.start
        total = opened.header.payload_bytes
        if opened.filled + size > total:
            raise CodecError(f"more payload than the {total} bytes announced")
        if opened.parts > 1:
            opened.buffer[opened.filled : opened.filled + size] = memoryview(data)[part.start : part.end]
        opened.filled += size
        opened.next_part += 1
        if opened.next_part < opened.parts:
            return None
        if opened.filled != total:
            raise CodecError(f"{opened.filled} bytes of payload, {total} announced")
        self._open = None
        if opened.parts > 1:
            return self._finish(opened, memoryview(opened.buffer).toreadonly())
        return self._finish(opened, _payload_in(data, part.start, part.end))

    def _begin(self, data: bytes, part: _Part) -> _Open[Header]:
        if part.header is None or part.part:
            raise CodecError(f"part {part.part} of a {self._noun} that has not begun")
        header, columns = self._read_header(data, *part.header)
        if part.codec == "shared_memory":
            limit = _SLACK_BYTES
        elif part.codec in PAYLOAD_CODECS:
            limit = self._max_bytes * PAYLOAD_CODECS[part.codec].expansion + _SLACK_BYTES
        else:
            raise CodecError(f"unknown codec {part.codec!r}")
        total = header.payload_bytes
        if total > limit:
            raise CodecError(f"a payload of {total} bytes; at most {limit} were agreed")
        if not 1 <= part.parts <= total + 1:
            raise CodecError(f"a payload of {total} bytes in {part.parts} parts")
        if columns.nbytes > self._max_bytes:
            raise CodecError(f"arrays of {columns.nbytes} bytes; at most {self._max_bytes} were agreed")
        buffer = bytearray(total) if part.parts > 1 else bytearray()
        return _Open(header, columns, part.codec, part.parts, buffer)

    def _read_header(self, data: bytes, start: int, end: int) -> tuple[Header, ColumnSet]:
        """Columns apart from the rest: they repeat from one to the next, so they are read once."""
        descriptions, rest = take_out(data, start, end, COLUMNS_FIELD)
        if len(descriptions) > MAX_COLUMNS:
            raise CodecError(f"{len(descriptions)} columns; at most {MAX_COLUMNS}")
        try:
            header = self._parse(rest)
        except DecodeError as error:
            raise CodecError(f"the header of a {self._noun} can't be read") from error
        return header, read_layouts(tuple(descriptions))

    def _finish(self, opened: _Open[Header], payload: Payload) -> Whole[Header]:
        header, columns = opened.header, opened.columns
        if header.crc32 and zlib.crc32(payload) != header.crc32:
            return Whole(header, None, columns.nbytes)
        codec = opened.codec
        if codec == "shared_memory":
            if self.read_slab is None:
                raise CodecError("the payload is in shared memory, which this receiver has not agreed to")
            payload = self.read_slab(bytes(payload), self._max_bytes + _SLACK_BYTES)
            codec = "protobuf"
        return Whole(header, PAYLOAD_CODECS[codec].read(payload, columns), columns.nbytes)


def _payload_in(data: bytes, start: int, end: int) -> Payload:
    """``data[start:end]``: a view if it is most of ``data`` and aligned in memory, else a copy."""
    if 2 * (end - start) > len(data) and (_BYTES_HEADER + start) % ALIGNMENT == 0:
        return memoryview(data)[start:end]
    return data[start:end]


def _read_part(data: bytes, start: int, end: int) -> _Part:
    part = _Part()
    for number, wire_type, a, b in fields(data, start, end):
        if number == 15 and wire_type == LENGTH:
            part.start, part.end = a, b
        elif number == 1 and wire_type == LENGTH:
            part.header = (a, b)
        elif number == 2 and wire_type == VARINT:
            part.part = a
        elif number == 3 and wire_type == VARINT:
            part.parts = a
        elif number == 4 and wire_type == LENGTH:
            part.codec = data[a:b].decode("utf-8", "replace")
    return part
