"""Puts arrays together that came in parts, as :mod:`headrace.codec.parts` cuts them.

Nothing received can crash the reader or make it allocate more than was agreed: every length is checked
against the bytes at hand, every announcement against ``max_bytes``.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from google.protobuf.message import DecodeError

from headrace.codec.columns import ALIGNMENT, COLUMNS_FIELD, MAX_COLUMNS, ColumnSet, Payload, read_layouts
from headrace.codec.payloads import PAYLOAD_CODECS
from headrace.codec.wire import LENGTH, VARINT, fields, take_out
from headrace.errors import CodecError
from headrace.types import Array

_SLACK_BYTES = 2**16
_BYTES_HEADER = sys.getsizeof(b"") - 1  # where the content of a bytes object begins; objects are aligned

ReadSlab = Callable[[bytes, int], Payload]
"""Takes a descriptor from a peer on the same node; gives the payload of at most so many bytes."""


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
