"""How the arrays of a fragment are written into its payload: raw, msgpack, or JSON for people to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack
import numpy as np

from headrace.codec.columns import DTYPES, Buffer, Bytes, ColumnLayout, check_layout, pieces, view_columns
from headrace.errors import CodecError
from headrace.types import Array


class PayloadCodec(NamedTuple):
    """One way to write a payload.

    ``write`` gives the payload as buffers in order; ``read`` is its inverse and gives read-only
    arrays. ``expansion`` bounds the payload: at most that many bytes per byte of array.
    """

    write: Callable[[Sequence[ColumnLayout], Sequence[Array]], list[Buffer]]
    read: Callable[[Bytes, Sequence[ColumnLayout]], dict[str, Array]]
    expansion: int


def _read_raw(payload: Bytes, layouts: Sequence[ColumnLayout]) -> dict[str, Array]:
    check_layout(layouts, payload.nbytes)
    return view_columns(payload, layouts)


def _write_msgpack(layouts: Sequence[ColumnLayout], arrays: Sequence[Array]) -> list[Buffer]:
    named = {
        layout.name: array.reshape(-1).view(np.uint8).data
        for layout, array in zip(layouts, arrays, strict=True)
    }
    return [msgpack.packb(named)]


def _read_msgpack(payload: Bytes, layouts: Sequence[ColumnLayout]) -> dict[str, Array]:
    try:
        named = msgpack.unpackb(payload.data, max_map_len=len(layouts))
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise CodecError(f"the payload is not msgpack: {error}") from error
    _check_names(named, layouts)
    columns: dict[str, Array] = {}
    for layout in layouts:
        content = named[layout.name]
        if not isinstance(content, bytes) or len(content) != layout.nbytes:
            raise CodecError(f"column {layout.name!r} is not {layout.nbytes} bytes of msgpack binary")
        alone = ColumnLayout(layout.name, layout.dtype, layout.shape, 0, layout.nbytes)
        columns |= view_columns(np.frombuffer(content, np.uint8), [alone])
    return columns


def _write_json(layouts: Sequence[ColumnLayout], arrays: Sequence[Array]) -> list[Buffer]:
    document = {layout.name: array.tolist() for layout, array in zip(layouts, arrays, strict=True)}
    return [json.dumps(document).encode()]


def _read_json(payload: Bytes, layouts: Sequence[ColumnLayout]) -> dict[str, Array]:
    try:
        named = json.loads(payload.tobytes())
    except (ValueError, RecursionError) as error:
        raise CodecError(f"the payload is not JSON: {error}") from error
    _check_names(named, layouts)
    columns: dict[str, Array] = {}
    for layout in layouts:
        try:
            array = np.array(named[layout.name], DTYPES[layout.dtype])
        except (ValueError, TypeError, OverflowError) as error:
            raise CodecError(f"column {layout.name!r} is not an array of {layout.dtype}: {error}") from error
        if not array.size and not layout.nbytes:  # nested lists can't tell [0] from [0, 4]
            array = array.reshape(layout.shape)
        if array.shape != layout.shape:
            raise CodecError(f"column {layout.name!r} has shape {array.shape}, announced {layout.shape}")
        array.flags.writeable = False
        columns[layout.name] = array
    return columns


def _check_names(named: Any, layouts: Sequence[ColumnLayout]) -> None:
    check_layout(layouts, max((layout.offset + layout.nbytes for layout in layouts), default=0))
    if not isinstance(named, dict) or named.keys() != {layout.name for layout in layouts}:
        raise CodecError("the payload does not hold exactly the announced columns")


PAYLOAD_CODECS: dict[str, PayloadCodec] = {
    "protobuf": PayloadCodec(pieces, _read_raw, 1),
    "msgpack": PayloadCodec(_write_msgpack, _read_msgpack, 2),
    "json": PayloadCodec(_write_json, _read_json, 64),
}
"""By the name in ``stream.codec``. JSON is Python's: NaN and Infinity are written as such."""
