"""Which tensors a flat vector holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.sync.aggregation import FlatArray
from headrace.types import Array


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and shapes of the tensors that a flat vector holds, one after the other."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Numbers in the whole vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    def name_of(self, index: int) -> str:
        """Where the number at ``index`` of the vector lies, e.g. ``network/hidden.0.weight[3, 4]``."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = math.prod(shape)
            if index < size:
                place = [int(one) for one in np.unravel_index(index, shape)] if shape else ""
                return f"{name}{place}"
            index -= size
        raise IndexError("beyond the vector")

    def split(self, flat: FlatArray) -> dict[str, Array]:
        """The tensors by name, as views of ``flat`` ``[size]``."""
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        parts = np.split(flat, ends)
        return {
            name: part.reshape(shape)
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def join(self, arrays: Mapping[str, Array]) -> FlatArray:
        """Inverse of :meth:`split`, a copy. KeyError or ValueError if one is absent or has another shape."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if arrays[name].shape != shape:
                raise ValueError(f"{name} has shape {arrays[name].shape}, expected {shape}")
        return np.concatenate([arrays[name].reshape(-1) for name in self.names]).astype(np.float32)
