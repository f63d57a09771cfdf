"""Draws the next batch from replay while the learner computes: with leave there, it never waits."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType

from headrace.clients.directory import DirectoryFollower
from headrace.clients.replay_pool import PoolDraw, ShardPool

_POLL_S = 0.2


class Drawer:
    """Holds at most ``depth`` draws of ``num_items`` items. Depth 0 draws when asked, in the caller's thread.

    A draw is made only with the directory's leave, which is given back if it fails. Errors of the
    drawing thread are raised by :meth:`take`. ``wait_seconds``: how long :meth:`take` has kept its caller
    waiting, by reason. Written by the caller's thread only.
    """

    def __init__(
        self,
        pool: ShardPool,
        directory: DirectoryFollower,
        *,
        num_items: int,
        depth: int,
        newest_version: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._directory = directory
        self._num_items = num_items
        self._depth = depth
        self._newest_version = newest_version
        self._clock = clock
        self._reason = ""
        self.wait_seconds: defaultdict[str, float] = defaultdict(float)
        self._ready: queue.SimpleQueue[PoolDraw | Exception] = queue.SimpleQueue()
        self._slots = threading.Semaphore(max(1, depth))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, name="draw", daemon=True)

    def __enter__(self) -> Drawer:
        if self._depth:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._depth:
            self._thread.join(timeout=5.0)

    def take(self, *, timeout_s: float) -> PoolDraw | None:
        """The next draw, or None if none was there within ``timeout_s`` seconds."""
        began, reason = self._clock(), self._reason
        try:
            return self._take(timeout_s)
        finally:
            self.wait_seconds[reason or self._reason or "sample"] += self._clock() - began

    def _take(self, timeout_s: float) -> PoolDraw | None:
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

    def _next(self, timeout_s: float) -> PoolDraw | None:
        fatal = self._directory.fatal or self._pool.fatal
        if fatal is not None:
            raise fatal
        deadline = self._clock() + timeout_s
        if not self._directory.acquire(self._num_items, timeout_s=timeout_s):
            self._reason = self._directory.wait_reason
            return None
        view = self._directory.view()
        if view is not None:
            self._pool.set_shards(view.shards)
        self._reason = "sample"
        draw = self._pool.draw(
            self._num_items, self._newest_version(), timeout_s=max(0.0, deadline - self._clock())
        )
        if draw is None:
            self._directory.give_back(self._num_items)
        else:
            self._reason = ""
        return draw

    def _fill(self) -> None:
        while not self._stop.is_set():
            if not self._slots.acquire(timeout=_POLL_S):
                continue
            try:
                draw = self._next(_POLL_S)
            except Exception as error:
                self._ready.put(error)
                return
            if draw is None:
                self._slots.release()
            else:
                self._ready.put(draw)
