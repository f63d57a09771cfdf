"""Arrays as bytes: which dtypes may cross, how columns lie in a payload, and how they are viewed again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.errors import CodecError
from headrace.types import Array, Columns

ALIGNMENT = 8
"""Columns start at multiples of this inside a payload, so that every dtype can be viewed in place."""

MAX_COLUMNS = 4096
MAX_DIMENSIONS = 32
_MAX_DIMENSION = 2**32 - 1

DTYPES: dict[str, np.dtype[np.generic]] = {
    code: np.dtype("<" + code)
    for code in ("b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
}
"""What may cross, by its name on the wire. Nothing else is ever looked up in numpy."""

Buffer = bytes | memoryview
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """Where one array lies in a payload. ``nbytes`` equals product(shape) * itemsize, always."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def dtype_code(dtype: np.dtype[np.generic]) -> str:
    """The wire's name of a dtype; CodecError for one that may not cross."""
    code = dtype.str[1:]
    if code not in DTYPES:
        raise CodecError(f"arrays of dtype {dtype} can't be sent")
    return code


def lay_out(columns: Columns) -> tuple[list[ColumnLayout], list[Array], int]:
    """Place columns one after another: their layouts, the arrays to write, and the payload's length.

    Arrays come back as they are if row-major and little-endian, else as a copy that is.
    """
    layouts: list[ColumnLayout] = []
    arrays: list[Array] = []
    offset = 0
    for name, column in columns.items():
        code = dtype_code(column.dtype)
        # ascontiguousarray would turn a scalar into one dimension.
        array = np.asarray(column, DTYPES[code], order="C")
        offset += -offset % ALIGNMENT
        layouts.append(ColumnLayout(name, code, array.shape, offset, array.nbytes))
        arrays.append(array)
        offset += array.nbytes
    return layouts, arrays, offset


def pieces(layouts: Sequence[ColumnLayout], arrays: Sequence[Array]) -> list[Buffer]:
    """The payload as a list of buffers in order, padding included; nothing is copied."""
    found: list[Buffer] = []
    position = 0
    for layout, array in zip(layouts, arrays, strict=True):
        if layout.offset > position:
            found.append(bytes(layout.offset - position))
        if array.nbytes:
            found.append(array.reshape(-1).view(np.uint8).data)
        position = layout.offset + layout.nbytes
    return found


def check_layout(layouts: Sequence[ColumnLayout], payload_bytes: int) -> None:
    """Raise CodecError unless every column is of a known dtype, honest about its size, and inside.

    Columns ascend and don't overlap, so their sum can't exceed ``payload_bytes``: memory is bounded
    by what was announced before anything is allocated.
    """
    if len(layouts) > MAX_COLUMNS:
        raise CodecError(f"{len(layouts)} columns; at most {MAX_COLUMNS}")
    position = 0
    seen = set()
    for layout in layouts:
        dtype = DTYPES.get(layout.dtype)
        if dtype is None:
            raise CodecError(f"column {layout.name!r} has dtype {layout.dtype!r}, which may not be sent")
        if len(layout.shape) > MAX_DIMENSIONS:
            raise CodecError(f"column {layout.name!r} has {len(layout.shape)} dimensions")
        if any(not 0 <= size <= _MAX_DIMENSION for size in layout.shape):
            raise CodecError(f"column {layout.name!r} has the impossible shape {layout.shape}")
        expected = math.prod(layout.shape) * dtype.itemsize
        if layout.nbytes != expected:
            raise CodecError(
                f"column {layout.name!r} claims {layout.nbytes} bytes; {layout.dtype}{list(layout.shape)} "
                f"takes {expected}"
            )
        if layout.offset < position or layout.offset + layout.nbytes > payload_bytes:
            raise CodecError(
                f"column {layout.name!r} lies at bytes {layout.offset} to {layout.offset + layout.nbytes} "
                f"of a payload of {payload_bytes}, after a column that ends at {position}"
            )
        if layout.name in seen:
            raise CodecError(f"column {layout.name!r} comes twice")
        seen.add(layout.name)
        position = layout.offset + layout.nbytes


def view_columns(payload: Bytes, layouts: Sequence[ColumnLayout]) -> dict[str, Array]:
    """Read-only views into ``payload``; call :func:`check_layout` first.

    A column at an unaligned offset (another sender's choice) is copied, so that every array is
    safe for code that assumes alignment.
    """
    columns: dict[str, Array] = {}
    for layout in layouts:
        dtype = DTYPES[layout.dtype]
        raw = payload[layout.offset : layout.offset + layout.nbytes]
        if not layout.nbytes:
            array = np.empty(layout.shape, dtype)
        else:
            if layout.dtype == "b1" and int(raw.max()) > 1:
                raise CodecError(f"column {layout.name!r} holds a bool that is neither 0 nor 1")
            if layout.offset % dtype.itemsize:
                raw = raw.copy()
            array = raw.view(dtype).reshape(layout.shape)
        array.flags.writeable = False
        columns[layout.name] = array
    return columns
