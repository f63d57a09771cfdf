"""Samples of replay as wire bytes: the small header by protobuf, the arrays straight from memory.

The bytes are those that protobuf would write for the same SampleResponse.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from headrace.codec.columns import COLUMNS_FIELD, MAX_COLUMNS, ColumnSet, lay_out, read_layouts
from headrace.codec.encode import BufferCursor, join
from headrace.codec.wire import LENGTH, fields, tag, take_out, varint
from headrace.errors import CodecError
from headrace.types import Array, Sample
from headrace.v1 import replay_pb2

KEY, PROBABILITY, VERSION = "key", "probability", "version"
MAX_ITEMS = 65536
"""Items of one draw, at most."""

_PAYLOAD = tag(15, LENGTH)
_FRAMING_BYTES = 64  # numbers of the header, tags and lengths, at most


@dataclass(frozen=True, slots=True)
class SampleReply:
    """An answer of a shard. ``sample`` is None where there was nothing to draw."""

    request_id: int
    sample: Sample | None
    count: int
    mass: float


def encode_sample(
    request_id: int, sample: Sample | None, *, count: int, mass: float, message_bytes: int
) -> list[bytes]:
    """The SampleResponse messages of one answer, each at most ``message_bytes`` long."""
    columns: dict[str, Array] = {}
    if sample is not None:
        columns = {KEY: sample.keys, PROBABILITY: sample.probabilities, VERSION: sample.versions}
        columns.update(sample.columns)
    laid_out = lay_out(columns)
    described = laid_out.described
    rest = message_bytes - _FRAMING_BYTES
    first = rest - len(described)
    if first < 0:
        raise CodecError(f"the description of {len(columns)} columns doesn't fit a message")
    parts = 1 + max(0, -(-(laid_out.nbytes - first) // rest))
    cursor = BufferCursor(laid_out.buffers())
    messages, left = [], laid_out.nbytes
    for part in range(parts):
        size = min(left, rest if part else first)
        left -= size
        header = replay_pb2.SampleResponse(request_id=request_id, part=part, parts=parts)
        if not part:
            header.num_items = 0 if sample is None else sample.size
            header.count, header.mass = count, mass
            header.payload_bytes = laid_out.nbytes
        head = header.SerializeToString() + (b"" if part else described)
        payload = (_PAYLOAD + varint(size), *cursor.take(size)) if size else ()
        messages.append(join((head, *payload)))
    return messages


class SampleAssembler:
    """Reads the answers on one stream in order. Not thread-safe. ``max_bytes`` bounds an answer's payload."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._header: replay_pb2.SampleResponse | None = None
        self._columns: ColumnSet | None = None
        self._buffer = bytearray()
        self._filled = 0
        self._next_part = 0

    def feed(self, data: bytes) -> SampleReply | None:
        """The answer that ``data``, one SampleResponse, completes. CodecError if it breaks the contract."""
        start = end = len(data)
        for number, wire_type, a, b in fields(data, 0, len(data)):
            if (number, wire_type) == (15, LENGTH):
                start, end = a, b
        if end != len(data):
            raise CodecError("the payload of an answer must come last")
        head = start - 1 - len(varint(end - start)) if start < end else end
        descriptions, rest = take_out(data, 0, head, COLUMNS_FIELD)
        try:
            message = replay_pb2.SampleResponse.FromString(rest)
        except DecodeError as error:
            raise CodecError("not a SampleResponse") from error
        if message.part == 0 and self._header is None:
            self._begin(message, descriptions)
        header = self._header
        if header is None or message.part != self._next_part or message.parts != header.parts:
            raise CodecError(f"part {message.part} of {message.parts} of an answer, out of order")
        if message.request_id != header.request_id or self._filled + end - start > header.payload_bytes:
            raise CodecError("a part that doesn't continue its answer")
        self._buffer[self._filled : self._filled + end - start] = memoryview(data)[start:end]
        self._filled += end - start
        self._next_part += 1
        if self._next_part < header.parts:
            return None
        return self._finish(header)

    def _begin(self, message: replay_pb2.SampleResponse, descriptions: list[bytes]) -> None:
        if len(descriptions) > MAX_COLUMNS:
            raise CodecError(f"{len(descriptions)} columns; at most {MAX_COLUMNS}")
        if message.payload_bytes > self._max_bytes or not 1 <= message.parts <= message.payload_bytes + 1:
            raise CodecError(
                f"an answer of {message.payload_bytes} bytes in {message.parts} parts; "
                f"at most {self._max_bytes} bytes are taken"
            )
        if message.num_items > MAX_ITEMS:
            raise CodecError(f"an answer of {message.num_items} items; at most {MAX_ITEMS} are taken")
        self._header, self._columns = message, read_layouts(tuple(descriptions))
        self._buffer, self._filled, self._next_part = bytearray(message.payload_bytes), 0, 0

    def _finish(self, header: replay_pb2.SampleResponse) -> SampleReply:
        if self._columns is None or self._filled != header.payload_bytes:
            raise CodecError(f"{self._filled} bytes of payload, {header.payload_bytes} announced")
        columns = self._columns.view(memoryview(self._buffer).toreadonly())
        self._header = self._columns = None
        sample = _sample(columns, header.num_items) if header.num_items else None
        return SampleReply(header.request_id, sample, header.count, header.mass)


def _sample(columns: dict[str, Array], num_items: int) -> Sample:
    for name, array in columns.items():
        if array.shape[:1] != (num_items,):
            raise CodecError(f"column {name!r} of an answer of {num_items} items has shape {array.shape}")
    try:
        keys, probabilities, versions = (columns.pop(name) for name in (KEY, PROBABILITY, VERSION))
    except KeyError as error:
        raise CodecError(f"an answer without the column {error}") from error
    kinds = (keys.dtype, probabilities.dtype, versions.dtype)
    flat = keys.ndim == probabilities.ndim == versions.ndim == 1
    if not flat or [kind.str for kind in kinds] != ["<i8", "<f8", "<i8"]:
        raise CodecError(f"keys, probabilities and versions of types {kinds}")
    if not bool(((probabilities > 0.0) & (probabilities <= 1.0 + 1e-9)).all()):
        raise CodecError("an item with a probability outside (0, 1]")
    return Sample(keys, probabilities, versions, columns)
