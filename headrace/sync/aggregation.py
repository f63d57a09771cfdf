"""Weighted means of flat vectors. What one learner alone has brought stays bit for bit what it was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FlatArray = npt.NDArray[np.float32]


def weighted_mean(vectors: Sequence[FlatArray], weights: Sequence[float]) -> FlatArray:
    """``sum(w v) / sum(w)`` of vectors ``[N]``, in float32, summed in the order given. Never an alias.

    ValueError if there is none, or no weight is positive.
    """
    used = [(vector, weight) for vector, weight in zip(vectors, weights, strict=True) if weight > 0.0]
    if not used:
        raise ValueError("a mean needs at least one vector with a positive weight")
    if len(used) == 1:
        return used[0][0].copy()
    total = sum(weight for _, weight in used)
    mean = used[0][0] * np.float32(used[0][1] / total)
    part = np.empty_like(mean)
    for vector, weight in used[1:]:
        np.multiply(vector, np.float32(weight / total), out=part)
        mean += part
    return mean


def first_not_finite(vector: FlatArray) -> int | None:
    """Index of the first NaN or infinity of a vector ``[N]``; None if all are finite."""
    # The sum of squares is finite only if everything is, but for overflow: then it is looked at closely.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(vector, vector)):
            return None
    finite = np.isfinite(vector)
    return None if finite.all() else int(np.argmin(finite))
