"""One law over many shards: which shard is drawn from, and what weight the items get for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]


def law(masses: Sequence[float] | Float64s) -> Float64s:
    """The probability ``[S]`` of each shard, in proportion to its mass; all zeros if there is none.

    A mass that is no number counts as none: one shard that is wrong doesn't stop the others.
    """
    values = np.asarray(masses, np.float64)
    values = np.where(np.isfinite(values), np.maximum(values, 0.0), 0.0)
    total = values.sum()
    return values / total if total > 0.0 else np.zeros(len(values))


def quotas(probabilities: Float64s, num_items: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """How many of ``num_items`` items come from each shard ``[S]``: one multinomial draw."""
    if probabilities.sum() <= 0.0:
        return np.zeros(len(probabilities), np.int64)
    return rng.multinomial(num_items, probabilities / probabilities.sum()).astype(np.int64)


def importance_weights(probabilities: Float64s, total_count: int, exponent: float) -> npt.NDArray[np.float32]:
    """``(N P)^-beta`` over the largest of the batch (Schaul et al., "Prioritized Experience Replay", 3.4).

    ``probabilities`` ``[M]`` are those that the items were really drawn with, over all shards;
    ``total_count`` is N over all shards.
    """
    if exponent == 0.0 or not len(probabilities):
        return np.ones(len(probabilities), np.float32)
    weights = (max(1, total_count) * probabilities) ** -exponent
    return np.asarray(weights / weights.max(), np.float32)


def drift(used: Sequence[float] | Float64s, true: Sequence[float] | Float64s) -> float:
    """Total variation between the law that is used and the true one, in [0, 1]; both ``[S]`` masses."""
    return float(0.5 * np.abs(law(used) - law(true)).sum())
