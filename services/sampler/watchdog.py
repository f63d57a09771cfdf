"""Ends the process when an environment hangs where nothing else can: inside the sampler itself.

With ``vectorization: async`` a hung worker is killed and replaced. An environment that hangs in the
sampler's own process can't be cut out; all that is left is to end the process with the reason, so
that a new incarnation starts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

EXIT_HUNG = 70


class Watchdog:
    """Watches a heartbeat: the monotonic time at which the running step began, None between steps."""

    def __init__(
        self,
        heartbeat: Callable[[], float | None],
        *,
        timeout_s: float,
        on_hang: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """``on_hang`` is told how long the step has run (seconds) before ``end`` is called."""
        self._heartbeat = heartbeat
        self._timeout_s = timeout_s
        self._on_hang = on_hang
        self._clock = clock
        self._end = end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Watch in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()

    def check(self) -> bool:
        """Look once; true if the step hangs (and ``end`` was called)."""
        began = self._heartbeat()
        if began is None or self._clock() - began <= self._timeout_s:
            return False
        self._on_hang(self._clock() - began)
        self._end(EXIT_HUNG)
        return True

    def _watch(self) -> None:
        while not self._stop.wait(min(1.0, self._timeout_s / 4)):
            if self.check():
                return
