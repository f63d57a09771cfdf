"""Wire bytes to fragments: protobuf parses only what is small, the rest is viewed or copied once.

Nothing received can crash the reader or make it allocate more than was agreed: every length is
checked against the bytes at hand, every announcement against ``max_bytes``.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import DecodeError

from headrace.codec.columns import (
    ALIGNMENT,
    COLUMNS_FIELD,
    MAX_COLUMNS,
    ColumnSet,
    Payload,
    read_layouts,
)
from headrace.codec.payloads import PAYLOAD_CODECS
from headrace.codec.wire import LENGTH, VARINT, fields, read_field, take_out
from headrace.errors import CodecError
from headrace.types import Fragment, FragmentId, PolicyVersion, SamplerIdentity
from headrace.v1 import trajectory_pb2

ReadSlab = Callable[[bytes, int], Payload]
"""Takes a descriptor from a peer on the same node; gives the payload of at most so many bytes."""

_SLACK_BYTES = 2**16
_BYTES_HEADER = sys.getsizeof(b"") - 1  # where the content of a bytes object begins; objects are aligned


@dataclass(frozen=True, slots=True)
class Damaged:
    """A fragment whose header arrived but whose payload was altered on the way."""

    id: FragmentId
    num_transitions: int
    nbytes: int
    detail: str


Control = (
    trajectory_pb2.OpenStream | trajectory_pb2.SamplerReport | trajectory_pb2.Goodbye | trajectory_pb2.Release
)
Received = Fragment | Damaged | Control
"""What a message can hold."""


class _Header(NamedTuple):
    """A FragmentHeader, its columns apart."""

    message: trajectory_pb2.FragmentHeader
    columns: ColumnSet

    @property
    def id(self) -> FragmentId:
        sampler = self.message.sampler
        return FragmentId(SamplerIdentity(sampler.sampler_id, sampler.incarnation), self.message.sequence)


@dataclass(slots=True)
class _Part:
    """A FragmentPart with its payload still in the message: ``data[start:end]``."""

    header: _Header | None = None
    part: int = 0
    parts: int = 0
    codec: str = ""
    start: int = 0
    end: int = 0


@dataclass(slots=True)
class _Open:
    """A fragment of which some parts have arrived. A fragment of one part has no buffer."""

    header: _Header
    codec: str
    parts: int
    buffer: bytearray
    next_part: int = 0
    filled: int = 0


class FragmentAssembler:
    """Reads the messages of one stream in order. Not thread-safe: one reader a stream.

    ``max_bytes`` bounds the arrays of one fragment. Arrays that come out are read-only. Those of a
    fragment that fills its message are views into it; others are copied out, so that a small
    fragment never keeps a large message alive. ``read_slab`` may be set once a slab is agreed on.
    """

    def __init__(self, max_bytes: int, *, read_slab: ReadSlab | None = None) -> None:
        self._max_bytes = max_bytes
        self.read_slab = read_slab
        self._open: _Open | None = None

    def feed(self, data: bytes) -> list[Received]:
        """What ``data``, one StreamFragmentsRequest, completes. CodecError if it breaks the contract."""
        number, wire_type, start, end, after = read_field(data, 0, len(data))
        if after != len(data):
            raise CodecError("a message holds exactly one kind, this one more")
        if wire_type != LENGTH:
            raise CodecError(f"field {number} of a message is not a submessage")
        if number not in (2, 3):
            return [self._control(data)]
        if number == 2:
            fragment = self._take(data, _read_part(data, start, end))
            return [] if fragment is None else [fragment]
        received: list[Received] = []
        for inner, inner_type, part_start, part_end in fields(data, start, end):
            if (inner, inner_type) == (1, LENGTH):
                fragment = self._take(data, _read_part(data, part_start, part_end))
                if fragment is not None:
                    received.append(fragment)
        return received

    def _control(self, data: bytes) -> Control:
        if self._open is not None:
            raise CodecError(f"part {self._open.next_part} of a fragment is missing")
        try:
            request = trajectory_pb2.StreamFragmentsRequest.FromString(data)
        except DecodeError as error:
            raise CodecError("not a StreamFragmentsRequest") from error
        kind = request.WhichOneof("kind")
        if kind not in ("open", "report", "goodbye", "release"):
            raise CodecError("a message of a kind that this version does not know")
        control: Control = getattr(request, kind)
        return control

    def _take(self, data: bytes, part: _Part) -> Fragment | Damaged | None:
        """Add a part; the fragment if it is complete."""
        if self._open is None:
            self._open = self._begin(part)
        opened = self._open
        if part.part != opened.next_part or part.parts != opened.parts:
            raise CodecError(
                f"part {part.part} of {part.parts} where part {opened.next_part} of {opened.parts} was due"
            )
        if part.part and (part.header is not None or part.codec != opened.codec):
            raise CodecError(f"part {part.part} of a fragment does not continue part 0")
        size = part.end - part.start
        total = opened.header.message.payload_bytes
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

    def _begin(self, part: _Part) -> _Open:
        header = part.header
        if header is None or part.part:
            raise CodecError(f"part {part.part} of a fragment that has not begun")
        if part.codec == "shared_memory":
            limit = _SLACK_BYTES
        elif part.codec in PAYLOAD_CODECS:
            limit = self._max_bytes * PAYLOAD_CODECS[part.codec].expansion + _SLACK_BYTES
        else:
            raise CodecError(f"unknown codec {part.codec!r}")
        total = header.message.payload_bytes
        if total > limit:
            raise CodecError(f"a payload of {total} bytes; at most {limit} were agreed")
        if not 1 <= part.parts <= total + 1:
            raise CodecError(f"a payload of {total} bytes in {part.parts} parts")
        if header.columns.nbytes > self._max_bytes:
            raise CodecError(
                f"arrays of {header.columns.nbytes} bytes; at most {self._max_bytes} were agreed"
            )
        buffer = bytearray(total) if part.parts > 1 else bytearray()
        return _Open(header, part.codec, part.parts, buffer)

    def _finish(self, opened: _Open, payload: Payload) -> Fragment | Damaged:
        header, columns = opened.header
        if header.crc32 and zlib.crc32(payload) != header.crc32:
            return Damaged(
                opened.header.id, header.num_transitions, columns.nbytes, "the payload's CRC-32 differs"
            )
        codec = opened.codec
        if codec == "shared_memory":
            if self.read_slab is None:
                raise CodecError("the payload is in shared memory, which this receiver has not agreed to")
            payload = self.read_slab(bytes(payload), self._max_bytes + _SLACK_BYTES)
            codec = "protobuf"
        return Fragment(
            id=opened.header.id,
            policy_version=PolicyVersion(header.policy_version.epoch, header.policy_version.number),
            config_digest=header.config_digest,
            columns=PAYLOAD_CODECS[codec].read(payload, columns),
            num_transitions=header.num_transitions,
            produced_through=header.produced_through,
            permit=header.permit,
        )


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
            part.header = _read_header(data, a, b)
        elif number == 2 and wire_type == VARINT:
            part.part = a
        elif number == 3 and wire_type == VARINT:
            part.parts = a
        elif number == 4 and wire_type == LENGTH:
            part.codec = data[a:b].decode("utf-8", "replace")
    return part


def _read_header(data: bytes, start: int, end: int) -> _Header:
    """Columns apart from the rest: they repeat from fragment to fragment, so they are read once."""
    descriptions, rest = take_out(data, start, end, COLUMNS_FIELD)
    if len(descriptions) > MAX_COLUMNS:
        raise CodecError(f"{len(descriptions)} columns; at most {MAX_COLUMNS}")
    try:
        message = trajectory_pb2.FragmentHeader.FromString(rest)
    except DecodeError as error:
        raise CodecError("the header of a fragment can't be read") from error
    return _Header(message, read_layouts(tuple(descriptions)))
