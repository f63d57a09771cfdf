"""How the arrays of a fragment are written into its payload: raw, msgpack, or JSON for people to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack
import numpy as np

from headrace.codec.columns import Buffer, ColumnSet, LaidOut, Payload, check_booleans
from headrace.errors import CodecError
from headrace.types import Array


class PayloadCodec(NamedTuple):
    """One way to write a payload.

    ``write`` gives the payload as buffers in order, and its length; ``read`` is its inverse and
    gives read-only arrays. ``expansion`` bounds the payload: so many bytes per byte of array.
    """

    write: Callable[[LaidOut], tuple[list[Buffer], int]]
    read: Callable[[Payload, ColumnSet], dict[str, Array]]
    expansion: int


def _write_raw(laid_out: LaidOut) -> tuple[list[Buffer], int]:
    return laid_out.buffers(), laid_out.nbytes


def _read_raw(payload: Payload, announced: ColumnSet) -> dict[str, Array]:
    return announced.view(payload)


def _write_msgpack(laid_out: LaidOut) -> tuple[list[Buffer], int]:
    named = {
        layout.name: array.reshape(-1).view(np.uint8).data
        for layout, array in zip(laid_out.layouts, laid_out.arrays, strict=True)
    }
    packed = msgpack.packb(named)
    return [packed], len(packed)


def _read_msgpack(payload: Payload, announced: ColumnSet) -> dict[str, Array]:
    try:
        named = msgpack.unpackb(payload, max_map_len=len(announced.layouts))
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise CodecError(f"the payload is not msgpack: {error}") from error
    _check_names(named, announced)
    columns: dict[str, Array] = {}
    for layout in announced.layouts:
        content = named[layout.name]
        if not isinstance(content, bytes) or len(content) != layout.nbytes:
            raise CodecError(f"column {layout.name!r} is not {layout.nbytes} bytes of msgpack binary")
        check_booleans(layout, memoryview(content))
        columns[layout.name] = np.ndarray(layout.shape, layout.dtype, content)
    return columns


def _write_json(laid_out: LaidOut) -> tuple[list[Buffer], int]:
    named = {
        layout.name: array.tolist() for layout, array in zip(laid_out.layouts, laid_out.arrays, strict=True)
    }
    text = json.dumps(named).encode()
    return [text], len(text)


def _read_json(payload: Payload, announced: ColumnSet) -> dict[str, Array]:
    try:
        named = json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise CodecError(f"the payload is not JSON: {error}") from error
    _check_names(named, announced)
    columns: dict[str, Array] = {}
    for layout in announced.layouts:
        try:
            array = np.array(named[layout.name], layout.dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise CodecError(f"column {layout.name!r} is not an array of {layout.dtype}: {error}") from error
        if not array.size and not layout.nbytes:  # nested lists can't tell [0] from [0, 4]
            array = array.reshape(layout.shape)
        if array.shape != layout.shape:
            raise CodecError(f"column {layout.name!r} has shape {array.shape}, announced {layout.shape}")
        array.flags.writeable = False
        columns[layout.name] = array
    return columns


def _check_names(named: Any, announced: ColumnSet) -> None:
    if not isinstance(named, dict) or named.keys() != announced.names:
        raise CodecError("the payload does not hold exactly the announced columns")


PAYLOAD_CODECS: dict[str, PayloadCodec] = {
    "protobuf": PayloadCodec(_write_raw, _read_raw, 2),
    "msgpack": PayloadCodec(_write_msgpack, _read_msgpack, 2),
    "json": PayloadCodec(_write_json, _read_json, 16),
}
"""By the name in ``stream.codec``. JSON is Python's: NaN and Infinity are written as such."""
