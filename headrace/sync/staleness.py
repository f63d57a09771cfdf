"""How much a contribution counts that was computed from an older version."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

APPLIED, LATE, DOWN_WEIGHTED, STALE, INVALID = "applied", "late", "down_weighted", "stale", "invalid"
"""From the newest version; older and counted in full; counted less; dropped for its age; refused."""

OUTCOMES = (APPLIED, LATE, DOWN_WEIGHTED, STALE, INVALID)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a contribution, and the factor of its weight (0: it is not used)."""

    outcome: str
    factor: float


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """Full weight up to ``full_weight_lag``, less up to ``max_lag``, nothing beyond. Lags are in versions.

    ``max_lag`` None: never dropped. ``weight`` says by what factor each version beyond ``full_weight_lag``
    lowers the weight, with ``e`` of them: ``inverse`` 1 / (1 + e), ``exponential`` 2 ** -e, ``none`` 1.
    """

    full_weight_lag: int
    max_lag: int | None
    weight: Literal["inverse", "exponential", "none"]

    def judge(self, lag: int) -> Judgement:
        """What becomes of a contribution that is ``lag`` versions old."""
        if lag <= 0:
            return Judgement(APPLIED, 1.0)
        if self.max_lag is not None and lag > self.max_lag:
            return Judgement(STALE, 0.0)
        excess = lag - self.full_weight_lag
        if excess <= 0 or self.weight == "none":
            return Judgement(LATE, 1.0)
        factor = 1.0 / (1.0 + excess) if self.weight == "inverse" else math.ldexp(1.0, -excess)
        return Judgement(DOWN_WEIGHTED, factor) if factor > 0.0 else Judgement(STALE, 0.0)
