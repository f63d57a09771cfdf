"""How many gradient steps learners take between two exchanges, chosen by how the run goes.

More of them cost less waiting, fewer keep learners together. The return curve tells when they are too far
apart: it jitters. Learners tell when they are too close: they idle, waiting for rounds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean

import numpy as np

CHOICES = (8, 16, 32)
"""Gradient steps between two exchanges."""

FIRST = 16
WINDOW = 20
"""Rounds after which it is decided anew."""

JITTER_LIMIT = 0.1
"""Scatter of the return around its trend, over the range of all returns, beyond which steps go down."""

IDLE_LIMIT = 0.1
"""Share of its time that a learner waits for rounds, beyond which steps go up."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is decided after a window, from which signals, and why. ``before``: the steps until now."""

    steps: int
    before: int
    jitter: float
    idle_share: float
    reason: str


class LocalStepsTuner:
    """Looks at every round, decides once a window. Pure. Going down has precedence over going up."""

    def __init__(self) -> None:
        self.steps = FIRST
        self._returns: deque[float] = deque(maxlen=WINDOW)
        self._idle: deque[float] = deque(maxlen=WINDOW)
        self._lowest = self._highest = float("nan")
        self._rounds = 0

    def observe(self, return_mean: float | None, idle_share: float) -> Decision | None:
        """A round has closed; ``return_mean`` of the latest training episodes (None: none finished yet).

        A decision at the end of each window, also if nothing changes.
        """
        self._rounds += 1
        self._idle.append(min(1.0, max(0.0, idle_share)))
        if return_mean is not None:
            self._returns.append(return_mean)
            self._lowest = float(np.fmin(self._lowest, return_mean))
            self._highest = float(np.fmax(self._highest, return_mean))
        if self._rounds % WINDOW:
            return None
        return self._decide(jitter=self._jitter(), idle_share=fmean(self._idle))

    def _decide(self, *, jitter: float, idle_share: float) -> Decision:
        before, place = self.steps, CHOICES.index(self.steps)
        reason = "neither jitter nor idling is above its limit"
        if jitter > JITTER_LIMIT:
            place -= 1
            reason = "the return jitters: exchange more often"
        elif idle_share > IDLE_LIMIT:
            place += 1
            reason = "learners idle: exchange less often"
        self.steps = CHOICES[min(max(place, 0), len(CHOICES) - 1)]
        return Decision(self.steps, before, jitter, idle_share, reason)

    def _jitter(self) -> float:
        """Standard deviation of the window's returns around a straight line, over the range of all."""
        span = self._highest - self._lowest
        if len(self._returns) < WINDOW or not span > 0.0:
            return 0.0
        returns, rounds = np.array(self._returns), np.arange(len(self._returns))
        slope, start = np.polyfit(rounds, returns, 1)
        return float(np.std(returns - (start + slope * rounds)) / span)
