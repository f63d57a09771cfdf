"""Gets the next batch ready while the learner computes, so that it never waits while data is there."""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

_POLL_S = 0.2

Item = TypeVar("Item", covariant=True)


class Source(Protocol[Item]):
    """Where batches come from."""

    busy: str
    """What a caller waits for while the source waits for nothing: the work of getting a batch ready."""

    def next(self, timeout_s: float) -> Item | None:
        """The next batch, or None if there was none within ``timeout_s`` seconds."""
        ...

    @property
    def wait_reason(self) -> str:
        """What it waits for right now; empty: for nothing."""
        ...


Ready = TypeVar("Ready")


class Prefetcher(Generic[Ready]):
    """Holds at most ``depth`` batches. Depth 0 gets one ready when asked, in the caller's thread.

    Batches come out in the order in which they were taken. An error of the source is raised by
    :meth:`take`, so that it is never lost in a thread.

    ``wait_seconds``: how long :meth:`take` has kept its caller waiting, by what the source was waiting for.
    Not what the source waits while the caller computes. Written by the caller's thread only.
    """

    def __init__(
        self, source: Source[Ready], *, depth: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._depth = depth
        self._clock = clock
        self.wait_seconds: defaultdict[str, float] = defaultdict(float)
        self._ready: queue.SimpleQueue[Ready | Exception] = queue.SimpleQueue()
        self._slots = threading.Semaphore(max(1, depth))  # batches that may still be taken ahead
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="prefetch", daemon=True)

    def __enter__(self) -> Prefetcher[Ready]:
        if self._depth:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._depth:
            self._thread.join(timeout=5.0)

    def take(self, *, timeout_s: float) -> Ready | None:
        """The next batch, or None if none was there within ``timeout_s`` seconds."""
        began, reason = self._clock(), self._source.wait_reason
        try:
            return self._take(timeout_s)
        finally:
            reason = reason or self._source.wait_reason or self._source.busy
            self.wait_seconds[reason] += self._clock() - began

    def _take(self, timeout_s: float) -> Ready | None:
        if not self._depth:
            return self._source.next(timeout_s)
        try:
            ready = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._slots.release()
        if isinstance(ready, Exception):
            raise ready
        return ready

    def _fill(self) -> None:
        while not self._stop.is_set():
            if not self._slots.acquire(timeout=_POLL_S):
                continue
            try:
                ready = self._source.next(_POLL_S)
            except Exception as error:
                self._ready.put(error)
                return
            if ready is None:
                self._slots.release()
            else:
                self._ready.put(ready)
