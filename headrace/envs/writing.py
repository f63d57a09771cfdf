"""From whatever an environment returned to an array of its leaf's shape and dtype, or a refusal."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.envs.bounds import OUTSIDE_SPACE, WRONG_DTYPE, WRONG_SHAPE
from headrace.envs.spec import LeafSpec
from headrace.types import Array


class Misfit(Exception):
    """A value can't be written into its leaf. ``reason`` is one of the reasons of validation."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(detail)

    @classmethod
    def structure(cls, value: Any, error: BaseException) -> Misfit:
        """The value isn't nested as its space says."""
        return cls(WRONG_SHAPE, f"a {type(value).__name__} doesn't fit the space: {error!r}"[:500])


def coerce(value: Any, leaf: LeafSpec, leading: tuple[int, ...] = ()) -> Array:
    """``value`` as an array of the leaf's dtype and of shape ``[*leading, *leaf.shape]``.

    Widths may differ (float64 for float32, int for int8) as long as no integer changes its value; kinds
    may not (no text, no objects, no floats for integers).

    Raises:
        Misfit: Wrong shape or dtype, or an integer that the dtype can't hold.
    """
    dtype = np.dtype(leaf.dtype)
    name = f"observation {leaf.path!r}" if leaf.path else "observation"
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise Misfit(WRONG_SHAPE, f"{name} is no array: {error}"[:500]) from error
    if not np.can_cast(array.dtype, dtype, "same_kind") and not _both_integers(array.dtype, dtype):
        raise Misfit(WRONG_DTYPE, f"{name} has dtype {array.dtype}, the space says {dtype}")
    if array.shape != leading + leaf.shape:
        raise Misfit(WRONG_SHAPE, f"{name} has shape {array.shape}, the space says {leading + leaf.shape}")
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(cast, array):
        raise Misfit(OUTSIDE_SPACE, f"{name} holds integers that {dtype} can't")
    return cast


def _both_integers(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    return given.kind in "iub" and wanted.kind in "iub"
