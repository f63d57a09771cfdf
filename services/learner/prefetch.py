"""Assembles the next batch while the learner computes, so that it never waits while data is there."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from headrace.rl.batch import stack_fragments
from headrace.types import Batch
from services.learner.intake import Intake
from services.learner.stock import TakenBatch

_POLL_S = 0.2
_ASSEMBLY = "assembly"


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """A batch taken from the intake and stacked for the algorithm."""

    taken: TakenBatch
    batch: Batch


class Prefetcher:
    """Holds at most ``depth`` stacked batches. Depth 0 stacks when asked, in the caller's thread.

    Batches come out in the order in which they were taken. An error while stacking is raised by
    :meth:`take`, so that it is never lost in a thread.

    ``wait_seconds``: how long :meth:`take` has kept its caller waiting, by what the intake was waiting for
    ("assembly": for nothing, the batch was being stacked). Not what the intake waits while the caller
    computes. Written by the caller's thread only.
    """

    def __init__(self, intake: Intake, *, depth: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._intake = intake
        self._depth = depth
        self._clock = clock
        self.wait_seconds: defaultdict[str, float] = defaultdict(float)
        self._ready: queue.SimpleQueue[ReadyBatch | Exception] = queue.SimpleQueue()
        self._slots = threading.Semaphore(max(1, depth))  # batches that may still be taken ahead
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetcher:
        if self._depth:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._depth:
            self._thread.join(timeout=5.0)

    def take(self, *, timeout_s: float) -> ReadyBatch | None:
        """The next batch, or None if none was there within ``timeout_s`` seconds."""
        began, reason = self._clock(), self._intake.wait_reason
        try:
            return self._take(timeout_s)
        finally:
            self.wait_seconds[reason or self._intake.wait_reason or _ASSEMBLY] += self._clock() - began

    def _take(self, timeout_s: float) -> ReadyBatch | None:
        if not self._depth:
            return self._next(timeout_s)
        try:
            ready = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._slots.release()
        if isinstance(ready, Exception):
            raise ready
        return ready

    def _next(self, timeout_s: float) -> ReadyBatch | None:
        taken = self._intake.next_batch(timeout_s=timeout_s)
        return None if taken is None else ReadyBatch(taken, stack_fragments(taken.fragments, taken.lags))

    def _fill(self) -> None:
        while not self._stop.is_set():
            if not self._slots.acquire(timeout=_POLL_S):
                continue
            try:
                ready = self._next(_POLL_S)
            except Exception as error:
                self._ready.put(error)
                return
            if ready is None:
                self._slots.release()
            else:
                self._ready.put(ready)
