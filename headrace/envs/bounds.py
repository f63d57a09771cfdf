"""Range checks of one leaf: two numbers or two arrays decide whether a value is acceptable.

NaN fails every comparison and infinity lies past every limit, so one pair of comparisons finds values
that are not finite, too large, or outside the space. Why a value failed is worked out afterwards.
"""

from __future__ import annotations

import numpy as np

from headrace.config.sections import ValidationConfig
from headrace.envs.spec import LeafSpec
from headrace.types import Array

NON_FINITE = "non_finite"
OUT_OF_RANGE = "out_of_range"
OUTSIDE_SPACE = "outside_space"
WRONG_SHAPE = "wrong_shape"
WRONG_DTYPE = "wrong_dtype"
_SMALL = 32


class LeafBounds:
    """Acceptable values of a leaf; arrays have any leading axes before the leaf's own shape.

    ``unchecked`` is True where no value of the dtype can be wrong, as in an image of full range.
    """

    def __init__(self, leaf: LeafSpec, validation: ValidationConfig, *, inside_space: bool) -> None:
        """``inside_space``: refuse what lies outside the space, not only what isn't finite."""
        self.path = leaf.path
        self._dtype = np.dtype(leaf.dtype)
        self._space_low, self._space_high = leaf.bounds()
        self._inside = inside_space
        is_float = self._dtype.kind == "f"
        low, high = self._space_low, self._space_high
        if is_float:
            limit = min(validation.observation_max_abs, float(np.finfo(self._dtype).max))
            if inside_space:
                low = np.maximum(low.astype(np.float64) - validation.space_tolerance, -limit)
                high = np.minimum(high.astype(np.float64) + validation.space_tolerance, limit)
            else:
                low, high = np.full(leaf.shape, -limit), np.full(leaf.shape, limit)
        self.low, self.high = low.astype(self._dtype), high.astype(self._dtype)
        self.unchecked = not is_float and (not inside_space or self._is_full_range())
        self._size = self.low.size
        self._uniform = self._size == 0 or bool(
            np.all(self.low == self.low.flat[0]) and np.all(self.high == self.high.flat[0])
        )
        self._pairs = list(zip(self.low.ravel().tolist(), self.high.ravel().tolist(), strict=True))
        self._narrow = _Stretch(self.low, self.high, 1)
        self._wide: _Stretch | None = None

    def accepts(self, values: Array) -> bool:
        """True if all of ``values`` is acceptable. Makes no copy of ``values`` and no mask of its size."""
        if self.unchecked or values.size == 0:
            return True
        if self._uniform:
            return bool(
                np.minimum.reduce(values, axis=None) >= self.low.flat[0]
                and np.maximum.reduce(values, axis=None) <= self.high.flat[0]
            )
        return self._accepts_by_component(values)

    def accepts_row(self, value: Array) -> bool:
        """As :meth:`accepts` for one small element: plain numbers are faster than array calls there."""
        if self._size > _SMALL:
            return self.accepts(value)
        if self.unchecked:
            return True
        for number, (low, high) in zip(value.ravel().tolist(), self._pairs, strict=True):
            if not low <= number <= high:
                return False
        return True

    def why_not(self, value: Array) -> tuple[str, str]:
        """Reason and detail of the first thing wrong with values that :meth:`accepts` refused."""
        name = f"observation {self.path!r}" if self.path else "observation"
        return self.explain(value, name)

    def explain(self, values: Array, name: str, *, num_lanes: int = 0) -> tuple[str, str]:
        """As :meth:`why_not`, calling the values ``name``; with ``num_lanes`` they are ``[T, B, ...]``."""
        rows = values.reshape(-1, self._size)
        bad = ~((rows >= self.low.ravel()) & (rows <= self.high.ravel()))
        row, component = (int(i) for i in np.argwhere(bad)[0])
        value = rows[row, component]
        index = np.unravel_index(component, self.low.shape) if self.low.shape else ()
        place = f"[{', '.join(str(int(i)) for i in index)}]" if index else ""
        if num_lanes:
            place += f" at step {row // num_lanes}, lane {row % num_lanes},"
        what = f"{name}{place} is {value.item()!r}"
        if self._dtype.kind == "f" and not np.isfinite(value):
            return NON_FINITE, what
        low, high = self._space_low.ravel()[component], self._space_high.ravel()[component]
        if self._inside and not low <= value <= high:
            return OUTSIDE_SPACE, f"{what}, outside [{low.item()!r}, {high.item()!r}]"
        return OUT_OF_RANGE, f"{what}, beyond validation.observation_max_abs"

    def _accepts_by_component(self, values: Array) -> bool:
        # Rows as wide as they are contiguous let comparisons run over long stretches of memory. The
        # bounds are laid out for the first width seen (all lanes of a vector); others go row by row.
        leading = values.shape[: values.ndim - self.low.ndim]
        width = (leading[-1] if leading else 1) * self._size
        if self._wide is None:
            self._wide = _Stretch(self.low, self.high, width // self._size)
        stretch = self._wide if self._wide.width == width else self._narrow
        rows = values.reshape(-1, stretch.width)
        if rows.shape[0] > 1:
            return stretch.encloses(np.minimum.reduce(rows, axis=0), np.maximum.reduce(rows, axis=0))
        return stretch.encloses(rows[0], rows[0])

    def _is_full_range(self) -> bool:
        if self._dtype.kind == "b":
            return True
        info = np.iinfo(self._dtype)
        return bool(np.all(self._space_low == info.min) and np.all(self._space_high == info.max))


class _Stretch:
    """Bounds laid out flat, ``times`` times in a row. Keeps no state, so threads may share it."""

    def __init__(self, low: Array, high: Array, times: int) -> None:
        self._low, self._high = np.tile(low.ravel(), times), np.tile(high.ravel(), times)
        self.width = self._low.size
        self._all = bytes([1]) * self.width

    def encloses(self, lowest: Array, highest: Array) -> bool:
        """True if ``low <= lowest`` and ``highest <= high`` everywhere; False for NaN."""
        return (lowest >= self._low).tobytes() == self._all and (highest <= self._high).tobytes() == self._all
