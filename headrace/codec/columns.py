"""Arrays as bytes: which dtypes may cross, how columns lie in a payload, and how they are viewed again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from google.protobuf.message import DecodeError

from headrace.codec.wire import length_field
from headrace.errors import CodecError
from headrace.types import Array, Columns
from headrace.v1 import common_pb2

ALIGNMENT = 8
"""Columns start at multiples of this inside a payload, so that every dtype can be viewed in place."""

MAX_COLUMNS = 4096
_MAX_DIMENSIONS = 32
_CACHED_LAYOUTS = 8192  # layouts repeat from fragment to fragment; describing one costs ten lookups
_CACHED_SETS = 256
COLUMNS_FIELD = 8  # FragmentHeader.columns
_SMALL_BYTES = 2048

DTYPES: dict[str, np.dtype[np.generic]] = {
    code: np.dtype("<" + code)
    for code in ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
}
"""What may cross, by its name on the wire. Nothing else is ever looked up in numpy."""

Buffer = bytes | memoryview | Array
"""C-contiguous memory, to be joined."""

Payload = bytes | memoryview
"""Received memory, not to be written to."""


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """Where one array lies in a payload. ``nbytes`` equals product(shape) * itemsize, always."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    end: int = field(init=False)  # the first byte after it
    aligned: bool = field(init=False)
    boolean: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "end", self.offset + self.nbytes)
        object.__setattr__(self, "aligned", self.offset % self.dtype.itemsize == 0)
        object.__setattr__(self, "boolean", self.dtype.kind == "b")


@dataclass(frozen=True, slots=True)
class LaidOut:
    """Columns placed one after another. ``arrays`` are row-major and little-endian."""

    layouts: list[ColumnLayout]
    arrays: list[Array]
    nbytes: int
    described: bytes  # all layouts as field ``columns`` of a FragmentHeader

    def buffers(self) -> list[Buffer]:
        """The raw payload in order, padding included; nothing is copied."""
        found: list[Buffer] = []
        position = 0
        for layout, array in zip(self.layouts, self.arrays, strict=True):
            if layout.offset > position:
                found.append(bytes(layout.offset - position))
            found.append(array)
            position = layout.offset + layout.nbytes
        return found


def lay_out(columns: Columns) -> LaidOut:
    """Place columns one after another; CodecError for an array that may not cross.

    Arrays are taken as they are if row-major and little-endian, else copied.
    """
    layouts: list[ColumnLayout] = []
    arrays: list[Array] = []
    described: list[bytes] = []
    offset = 0
    for name, column in columns.items():
        offset += -offset % ALIGNMENT
        layout, description = _describe(name, column.dtype, column.shape, offset)
        layouts.append(layout)
        described.append(description)
        # Not ascontiguousarray, which would turn a scalar into one dimension.
        arrays.append(np.asarray(column, layout.dtype, order="C"))
        offset += layout.nbytes
    return LaidOut(layouts, arrays, offset, b"".join(described))


@lru_cache(_CACHED_LAYOUTS)
def _describe(
    name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...], offset: int
) -> tuple[ColumnLayout, bytes]:
    code = dtype.str[1:]
    if code not in DTYPES:
        raise CodecError(f"column {name!r} has dtype {dtype}, which can't be sent")
    nbytes = math.prod(shape) * dtype.itemsize
    message = common_pb2.Column(name=name, dtype=code, shape=shape, offset=offset, nbytes=nbytes)
    layout = ColumnLayout(name, DTYPES[code], shape, offset, nbytes)
    return layout, length_field(COLUMNS_FIELD, message.SerializeToString())


@lru_cache(_CACHED_SETS)
def read_layouts(descriptions: tuple[bytes, ...]) -> tuple[ColumnLayout, ...]:
    """Layouts from serialized Column messages. Each is of a known dtype and honest about its size;
    they ascend, don't overlap and have different names. CodecError otherwise.
    """
    layouts = tuple(map(_read_layout, descriptions))
    position = 0
    for layout in layouts:
        if layout.offset < position:
            raise CodecError(f"column {layout.name!r} starts at {layout.offset}, inside or before another")
        position = layout.end
    if len({layout.name for layout in layouts}) != len(layouts):
        raise CodecError("two columns have the same name")
    return layouts


@lru_cache(_CACHED_LAYOUTS)
def _read_layout(description: bytes) -> ColumnLayout:
    try:
        column = common_pb2.Column.FromString(description)
    except DecodeError as error:
        raise CodecError("the description of a column can't be read") from error
    dtype = DTYPES.get(column.dtype)
    if dtype is None:
        raise CodecError(f"column {column.name!r} has dtype {column.dtype!r}, which may not be sent")
    if len(column.shape) > _MAX_DIMENSIONS:
        raise CodecError(f"column {column.name!r} has {len(column.shape)} dimensions")
    shape = tuple(column.shape)
    expected = math.prod(shape) * dtype.itemsize
    if column.nbytes != expected:
        raise CodecError(
            f"column {column.name!r} claims {column.nbytes} bytes; {column.dtype}{list(shape)} "
            f"takes {expected}"
        )
    return ColumnLayout(column.name, dtype, shape, column.offset, expected)


def view_columns(payload: Payload, layouts: Sequence[ColumnLayout]) -> dict[str, Array]:
    """Read-only arrays in ``payload``, which starts at a multiple of ALIGNMENT in memory.

    A column at an unaligned offset (another sender's choice) is copied, so that every array is safe
    for code that assumes alignment. CodecError if a column reaches beyond the payload.
    """
    if layouts and layouts[-1].end > len(payload):
        raise CodecError(f"columns up to byte {layouts[-1].end} of a payload of {len(payload)}")
    is_read_only = isinstance(payload, bytes)
    columns: dict[str, Array] = {}
    for layout in layouts:
        array: Array
        if layout.aligned:
            array = np.ndarray(layout.shape, layout.dtype, payload, layout.offset)
        else:
            array = np.ndarray(layout.shape, layout.dtype, bytes(payload[layout.offset : layout.end]))
        if layout.boolean and not _is_boolean(memoryview(payload)[layout.offset : layout.end]):
            raise CodecError(f"column {layout.name!r} holds a bool that is neither 0 nor 1")
        if not is_read_only:
            array.flags.writeable = False
        columns[layout.name] = array
    return columns


def _is_boolean(content: memoryview) -> bool:
    """Whether every byte is 0 or 1; any other would be a bool that numpy and torch disagree about."""
    if len(content) <= _SMALL_BYTES:  # a call into numpy costs more than looking at so few bytes
        return not bytes(content).strip(b"\0\1")
    return int(np.frombuffer(content, np.uint8).max()) <= 1
