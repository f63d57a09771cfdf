"""Running mean and variance of a stream, merged from deltas in float64.

Samplers send what a fragment adds, never totals; the learner merges. The state is part of the policy
version, under the names ``normalizer/<leaf>/{count,mean,m2}`` and ``value_normalizer/{count,mean,m2}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.types import NORMALIZER, Array

Float64Array = npt.NDArray[np.float64]

VALUE_NORMALIZER = "value_normalizer"
_VARIANCE_FLOOR = 1e-8
_FIELDS = ("count", "mean", "m2")


@dataclass(slots=True)
class RunningMoments:
    """Count, mean and sum of squared deviations (M2) of everything seen, elementwise over a shape.

    ``mean`` and ``m2`` have the shape of one element; all float64.
    """

    count: float
    mean: Float64Array
    m2: Float64Array

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> RunningMoments:
        """Nothing seen yet."""
        return cls(0.0, np.zeros(shape, np.float64), np.zeros(shape, np.float64))

    @classmethod
    def of(cls, rows: Array) -> RunningMoments:
        """The moments of ``rows`` ``[N, ...]`` alone; N may be 0."""
        if rows.shape[0] == 0:
            return cls.empty(rows.shape[1:])
        exact = rows.astype(np.float64)
        mean = exact.mean(axis=0)
        return cls(float(rows.shape[0]), np.asarray(mean), np.asarray(np.square(exact - mean).sum(axis=0)))

    def merge(self, other: RunningMoments) -> None:
        """Add what ``other`` has seen, as if all rows had been seen by one.

        Pairwise update of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
        Computing Sample Variances" (1979), equations 2.1a and 2.1b.
        """
        if other.count == 0.0:
            return
        total = self.count + other.count
        delta = other.mean - self.mean
        self.mean = self.mean + delta * (other.count / total)
        self.m2 = self.m2 + other.m2 + np.square(delta) * (self.count * other.count / total)
        self.count = total

    @property
    def std(self) -> Float64Array:
        """Population standard deviation with a small floor; 1 before anything was seen."""
        if self.count == 0.0:
            return np.ones_like(self.m2)
        return np.sqrt(np.maximum(self.m2 / self.count, _VARIANCE_FLOOR))

    def columns(self, prefix: str) -> dict[str, Array]:
        """The state as named arrays ``<prefix>/{count,mean,m2}``."""
        return {
            f"{prefix}/count": np.array(self.count, np.float64),
            f"{prefix}/mean": np.array(self.mean, np.float64),
            f"{prefix}/m2": np.array(self.m2, np.float64),
        }

    @classmethod
    def from_columns(cls, prefix: str, columns: Mapping[str, Array]) -> RunningMoments:
        """Inverse of :meth:`columns`. KeyError if one is absent."""
        count, mean, m2 = (columns[f"{prefix}/{field}"] for field in _FIELDS)
        return cls(float(count.reshape(())), mean.astype(np.float64), m2.astype(np.float64))


class Moments:
    """Running moments by prefix, and apart from them what has come in since it was last asked for."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.totals = {prefix: RunningMoments.empty(shape) for prefix, shape in shapes.items()}
        self._fresh = {prefix: RunningMoments.empty(shape) for prefix, shape in shapes.items()}

    def merge(self, prefix: str, delta: RunningMoments) -> None:
        """Take in what somebody has seen."""
        self.totals[prefix].merge(delta)
        self._fresh[prefix].merge(delta)

    def columns(self) -> dict[str, Array]:
        """The totals as named arrays."""
        return _columns(self.totals)

    def load(self, columns: Mapping[str, Array]) -> None:
        """Inverse of :meth:`columns`. KeyError if one is absent."""
        for prefix in self.totals:
            self.totals[prefix] = RunningMoments.from_columns(prefix, columns)

    def take_fresh(self) -> dict[str, Array]:
        """What has come in since the last call, as named arrays."""
        taken = _columns(self._fresh)
        for prefix, moments in self._fresh.items():
            self._fresh[prefix] = RunningMoments.empty(moments.mean.shape)
        return taken


def _columns(by_prefix: Mapping[str, RunningMoments]) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    for prefix, moments in by_prefix.items():
        columns.update(moments.columns(prefix))
    return columns


def observation_prefix(leaf: str) -> str:
    """Prefix of the columns and parameters that normalize one leaf of the observation."""
    return f"{NORMALIZER}/{leaf}"
