"""Draws from replay: with the directory's leave, from the shards that it lists."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.clients.directory import DirectoryFollower
from headrace.clients.replay_pool import PoolDraw, ShardPool


class Draws:
    """Draws of ``num_items`` items each.

    A draw is made only with the directory's leave, which is given back if it fails. Used by one thread.
    """

    busy = "sample"

    def __init__(
        self,
        pool: ShardPool,
        directory: DirectoryFollower,
        *,
        num_items: int,
        newest_version: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``newest_version`` gives the number of the newest version, for freshness."""
        self._pool = pool
        self._directory = directory
        self._num_items = num_items
        self._newest_version = newest_version
        self._clock = clock
        self._reason = ""

    @property
    def wait_reason(self) -> str:
        """What the next draw waits for; empty: for nothing but its answers."""
        return self._reason

    def next(self, timeout_s: float) -> PoolDraw | None:
        """The next draw, or None if none could be made within ``timeout_s`` seconds.

        Raises what keeps directory or shards from ever answering.
        """
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
        self._reason = ""
        draw = self._pool.draw(
            self._num_items, self._newest_version(), timeout_s=max(0.0, deadline - self._clock())
        )
        if draw is None:
            self._directory.give_back(self._num_items)
        return draw
