"""How long to wait before trying again: exponential, capped, with jitter so that no herd thunders."""

from __future__ import annotations

import numpy as np


class Backoff:
    """Waiting times of one client against one peer.

    The n-th wait in a row is uniform in [c/2, c] with c = min(maximum_s, initial_s * 2^n): half of it
    is certain (the peer gets air), half is jitter (clients that lost the same peer spread out).
    """

    def __init__(self, initial_s: float, maximum_s: float, rng: np.random.Generator) -> None:
        if not 0 < initial_s <= maximum_s:
            raise ValueError(f"need 0 < initial_s <= maximum_s, got {initial_s} and {maximum_s}")
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._rng = rng
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        ceiling = min(self._maximum_s, self._initial_s * 2.0 ** min(self._failures, 62))
        self._failures += 1
        return float(self._rng.uniform(ceiling / 2, ceiling))

    def reset(self) -> None:
        """The peer answered: the next failure waits ``initial_s`` again."""
        self._failures = 0
