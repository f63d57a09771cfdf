"""How long to wait before trying again: exponential, capped, with jitter so that no herd thunders."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.errors import CredentialsError, HeadraceError

SAY_AGAIN_S = 60.0
"""Seconds after which an outage that lasts is spoken of again."""
_SLOW_S = 5.0  # credentials are renewed by people, or minutes later by their tools


@dataclass(frozen=True, slots=True)
class Pause:
    """What to do after a failure: wait ``seconds``; ``loud``: tell people of it."""

    seconds: float
    loud: bool


class Backoff:
    """Waiting times of one client against one peer.

    The n-th wait in a row is uniform in [c/2, c] with c = min(maximum_s, initial_s * 2^n): half of it
    is certain (the peer gets air), half is jitter (clients that lost the same peer spread out).
    """

    def __init__(
        self,
        initial_s: float,
        maximum_s: float,
        rng: np.random.Generator,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < initial_s <= maximum_s:
            raise ValueError(f"need 0 < initial_s <= maximum_s, got {initial_s} and {maximum_s}")
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._rng = rng
        self._clock = clock
        self._failures = 0
        self._said_at = 0.0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        ceiling = min(self._maximum_s, self._initial_s * 2.0 ** min(self._failures, 62))
        self._failures += 1
        return float(self._rng.uniform(ceiling / 2, ceiling))

    def after(self, error: HeadraceError) -> Pause:
        """The pause after ``error``. Loud at the first failure in a row, then once a minute.

        Where credentials were refused it is a long one: asking often helps nobody.
        """
        now = self._clock()
        loud = not self._failures or now - self._said_at >= SAY_AGAIN_S
        if loud:
            self._said_at = now
        seconds = self.next_s()
        if isinstance(error, CredentialsError):
            seconds = max(seconds, float(self._rng.uniform(_SLOW_S / 2, _SLOW_S)))
        return Pause(seconds, loud)

    def reset(self) -> None:
        """The peer answered: the next failure waits ``initial_s`` again."""
        self._failures = 0
