"""Arrays as bytes: which dtypes may cross, how columns lie in a payload, and how they are viewed again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from google.protobuf.message import DecodeError

from headrace.codec.wire import length_field, take_out
from headrace.errors import CodecError
from headrace.types import Array, Columns
from headrace.v1 import common_pb2

ALIGNMENT = 8
"""Columns start at multiples of this inside a payload, so that every dtype can be viewed in place."""

MAX_COLUMNS = 4096
_MAX_DIMENSIONS = 32
_CACHED_LAYOUTS = 8192  # layouts repeat from fragment to fragment; describing one costs ten lookups
_CACHED_SETS = 512
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

    @property
    def end(self) -> int:
        """The first byte after it."""
        return self.offset + self.nbytes


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


class ColumnSet:
    """The columns of one payload, as announced: ascending, apart from each other, each named once.

    Views of all of them are fields of one structured array, which numpy makes four times faster than
    arrays one by one. Where that isn't possible (unaligned columns, dimensions beyond a C int) each is
    made by itself.
    """

    def __init__(self, layouts: tuple[ColumnLayout, ...]) -> None:
        self.layouts = layouts
        self.nbytes = sum(layout.nbytes for layout in layouts)
        self.end = max((layout.end for layout in layouts), default=0)
        self.names = frozenset(layout.name for layout in layouts)
        self._booleans = [layout for layout in layouts if layout.dtype.kind == "b" and layout.nbytes]
        self._fields = [(layout.name, f"f{index}") for index, layout in enumerate(layouts)]
        self._record: np.dtype[np.void] | None = None
        self._try_record = all(layout.offset % layout.dtype.itemsize == 0 for layout in layouts)

    def view(self, payload: Payload, *, trusted: bool = False) -> dict[str, Array]:
        """Read-only, aligned arrays in ``payload``, which starts at a multiple of ALIGNMENT in memory.

        CodecError if a column reaches beyond the payload, or if a bool in it is neither 0 nor 1: numpy
        and torch would disagree about what that means. ``trusted``: it was checked before it was stored.
        """
        if self.end > len(payload):
            raise CodecError(f"columns up to byte {self.end} of a payload of {len(payload)}")
        for layout in () if trusted else self._booleans:
            check_booleans(layout, memoryview(payload)[layout.offset : layout.end])
        if self._try_record:
            self._record = _make_record(self.layouts, self._fields, self.end)
            self._try_record = False
        if self._record is None:
            return self._view_one_by_one(payload)
        record: Array = np.ndarray((), self._record, payload)
        record.flags.writeable = False
        return {name: record[field] for name, field in self._fields}

    def _view_one_by_one(self, payload: Payload) -> dict[str, Array]:
        columns: dict[str, Array] = {}
        for layout in self.layouts:
            if layout.offset % layout.dtype.itemsize:
                content = bytes(memoryview(payload)[layout.offset : layout.end])
                array: Array = np.ndarray(layout.shape, layout.dtype, content)
            else:
                array = np.ndarray(layout.shape, layout.dtype, payload, layout.offset)
            array.flags.writeable = False
            columns[layout.name] = array
        return columns


def _make_record(
    layouts: Sequence[ColumnLayout], fields: Sequence[tuple[str, str]], end: int
) -> np.dtype[np.void] | None:
    try:
        return np.dtype(
            {
                "names": [field for _, field in fields],
                "formats": [(layout.dtype, layout.shape) for layout in layouts],
                "offsets": [layout.offset for layout in layouts],
                "itemsize": end,
            }
        )
    except (ValueError, OverflowError, TypeError):  # a dimension or the whole is beyond a C int
        return None


@lru_cache(_CACHED_SETS)
def read_layouts(descriptions: tuple[bytes, ...]) -> ColumnSet:
    """A set from serialized Column messages. Each is of a known dtype and honest about its size;
    they ascend, don't overlap and have different names. CodecError otherwise.
    """
    columns = ColumnSet(tuple(map(_read_layout, descriptions)))
    position = 0
    for layout in columns.layouts:
        if layout.offset < position:
            raise CodecError(f"column {layout.name!r} starts at {layout.offset}, inside or before another")
        position = layout.end
    if len(columns.names) != len(columns.layouts):
        raise CodecError("two columns have the same name")
    return columns


@lru_cache(_CACHED_SETS)
def read_description(described: bytes) -> ColumnSet:
    """A set from what :class:`LaidOut` calls ``described``. CodecError as :func:`read_layouts` raises it."""
    descriptions, rest = take_out(described, 0, len(described), COLUMNS_FIELD)
    if rest:
        raise CodecError("a description of columns that holds something else")
    return read_layouts(tuple(descriptions))


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


def check_booleans(layout: ColumnLayout, content: memoryview) -> None:
    """Raise CodecError if a column of bools holds a byte other than 0 and 1."""
    if layout.dtype.kind != "b" or not content:
        return
    if len(content) <= _SMALL_BYTES:  # a call into numpy costs more than looking at so few bytes
        good = not bytes(content).strip(b"\0\1")
    else:
        good = int(np.frombuffer(content, np.uint8).max()) <= 1
    if not good:
        raise CodecError(f"column {layout.name!r} holds a bool that is neither 0 nor 1")
