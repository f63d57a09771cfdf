"""When a process that died is started again: backoff that doubles, and a cap within a window. Pure."""

from __future__ import annotations

from collections import deque

from headrace.config.sections import RestartConfig


class RestartBudget:
    """Restarts of one process. Times are seconds of one monotonic clock, passed in.

    Deaths older than the window are forgotten, so a process that dies now and then goes on for ever
    and one that dies at once, again and again, is given up.
    """

    def __init__(self, limits: RestartConfig) -> None:
        self._limits = limits
        self._deaths: deque[float] = deque()

    @property
    def spent(self) -> str:
        """What was spent, in words, once :meth:`record_death` has given up."""
        return (
            f"it was started again {len(self._deaths)} times within {self._limits.window_s:g} s "
            "(restart.max_restarts, restart.window_s)"
        )

    def record_death(self, now: float) -> float | None:
        """Seconds to wait before the next start; None: given up, the budget of the window is spent."""
        while self._deaths and now - self._deaths[0] > self._limits.window_s:
            self._deaths.popleft()
        if len(self._deaths) >= self._limits.max_restarts:
            return None
        self._deaths.append(now)
        doublings = min(len(self._deaths) - 1, 60)
        return float(min(self._limits.max_backoff_s, self._limits.backoff_s * 2.0**doublings))
