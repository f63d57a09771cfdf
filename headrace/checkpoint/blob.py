"""Named arrays as one safetensors blob, and back. No pickle: nothing that is read can run code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import safetensors
import safetensors.numpy

from headrace.errors import CodecError
from headrace.types import Array


@dataclass(frozen=True, slots=True)
class Blob:
    """Encoded arrays with the SHA-256 (lower-case hex) of the whole."""

    data: bytes
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Blob:
        """A blob of bytes as they are."""
        return cls(data, hashlib.sha256(data).hexdigest())

    @classmethod
    def encode(cls, arrays: Mapping[str, Array]) -> Blob:
        """Encode named arrays (of any shape, also scalars; also none at all)."""
        return cls.of(encode_arrays(arrays))

    def decode(self) -> dict[str, Array]:
        """The arrays; a copy of their own for every call."""
        return decode_arrays(self.data)

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return len(self.data)


def encode_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Encode as safetensors: row-major, little-endian. Equal arrays give equal bytes."""
    # safetensors copies the memory as it lies, so strides and byte order must be right beforehand.
    plain = {
        name: np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        for name, array in arrays.items()
    }
    return safetensors.numpy.save(plain)


def decode_arrays(data: bytes) -> dict[str, Array]:
    """Inverse of :func:`encode_arrays`; the arrays are copies. Raises CodecError on anything else."""
    try:
        return dict(safetensors.numpy.load(data))
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CodecError(f"not a safetensors blob that numpy can hold: {error}") from error


def find_non_finite(arrays: Mapping[str, Array]) -> str | None:
    """Name the first NaN or infinity, e.g. ``policy/0/weight[3, 4] is nan``; None if all are finite."""
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.inexact):
            continue
        finite = np.isfinite(array)
        if not finite.all():
            place = np.unravel_index(int(np.argmin(finite)), array.shape)
            return f"{name}{[int(i) for i in place] if place else ''} is {array[place]}"
    return None
