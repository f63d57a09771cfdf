"""Flat vectors as bytes: single precision, or half of it for the way."""

from __future__ import annotations

from typing import Literal

import numpy as np

from headrace.errors import CodecError
from headrace.sync.aggregation import FlatArray

VectorType = Literal["float32", "float16", "bfloat16"]

_ITEM_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}
_LARGEST_HALF = np.float32(65504.0)


def encode_vector(vector: FlatArray, kind: VectorType) -> bytes:
    """Little-endian numbers ``[N]``. float16 is cut at its largest number; NaN and infinity stay."""
    if kind == "float32":
        return np.ascontiguousarray(vector, "<f4").tobytes()
    if kind == "float16":
        inside = np.where(np.isfinite(vector), np.clip(vector, -_LARGEST_HALF, _LARGEST_HALF), vector)
        return inside.astype("<f2").tobytes()
    bits = np.ascontiguousarray(vector, "<f4").view("<u4")
    # To nearest, ties to even: adding may carry into the exponent, which is right but for NaN.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(vector), quiet, rounded).astype("<u2").tobytes()


def decode_vector(data: bytes, kind: VectorType, size: int) -> FlatArray:
    """Inverse of :func:`encode_vector`, float32 ``[size]``. CodecError if the length is another."""
    if len(data) != size * _ITEM_BYTES[kind]:
        raise CodecError(f"a vector of {len(data)} bytes, expected {size} numbers of type {kind}")
    if kind == "float32":
        return np.frombuffer(data, "<f4")
    if kind == "float16":
        return np.frombuffer(data, "<f2").astype(np.float32)
    return (np.frombuffer(data, "<u2").astype("<u4") << np.uint32(16)).view("<f4")
