"""Copies the hot tier to the cold one, chunk after chunk, as fast as the cold tier takes them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.clients.fragments import FragmentSender
from headrace.replay.shard import Evicted, HotShard

_POLL_S = 0.2


class Sinker:
    """Sinks one shard in a thread of its own; the sampler never waits for it.

    A chunk that the hot tier lets go before its turn is skipped: the cold tier never gets it. One that was
    handed over is released there when the hot tier lets it go. ``_changed`` guards the two counters and is
    notified of every insert.
    """

    def __init__(
        self, shard: HotShard, sender: FragmentSender, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shard = shard
        self._sender = sender
        self._clock = clock
        self._changed = threading.Condition()
        self._next_chunk = 0
        self._handed: set[int] = set()  # chunks that were handed over and are still hot
        self._stopped = False
        self.evicted_unsunk = 0
        """Transitions that were let go before they could be sunk."""
        self.error: Exception | None = None
        """Why nothing is sunk any more: a fault of ours. None: all is well."""
        self._thread = threading.Thread(target=self._run, name="sinker", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._sender.start()
        self._thread.start()

    def inserted(self, evicted: list[Evicted]) -> None:
        """The hot tier has a new chunk, and let these go for it. Never blocks."""
        with self._changed:
            for gone in evicted:
                if gone.chunk in self._handed:
                    self._handed.discard(gone.chunk)
                    self._sender.release(gone.fragment_id.sequence, gone.priorities)
                else:
                    self.evicted_unsunk += gone.num_transitions
            self._changed.notify_all()

    def leave(self, reason: str, deadline_s: float) -> bool:
        """Sink what is left and say goodbye; whether all of it is stored there."""
        deadline = self._clock() + deadline_s
        with self._changed:
            self._changed.wait_for(
                lambda: self._shard.next_stored(self._next_chunk) is None or self._sender.fatal is not None,
                deadline_s,
            )
            self._stopped = True
            self._changed.notify_all()
        self._thread.join(_POLL_S * 2)
        return self._sender.drain(reason, max(0.1, deadline - self._clock()))

    def close(self) -> None:
        """Let go. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._sender.close()

    def _run(self) -> None:
        try:
            self._sink()
        except Exception as error:
            self.error = error
            raise

    def _sink(self) -> None:
        while not self._stopped and self._sender.fatal is None:
            chunk = self._shard.next_stored(self._next_chunk)
            if chunk is None:
                with self._changed:
                    self._changed.notify_all()  # whoever waits for all to be sunk
                    if self._shard.next_stored(self._next_chunk) is None:
                        self._changed.wait(_POLL_S)
                continue
            if self._sender.acquire(acting_version=lambda: 0, timeout_s=_POLL_S) is not None:
                self._hand_over(chunk)

    def _hand_over(self, chunk: int) -> None:
        """Send the first chunk from ``chunk`` on that is still hot."""
        with self._changed:
            stored = self._shard.next_stored(chunk)
            while stored is not None:
                self._next_chunk = stored + 1
                try:
                    fragment = self._shard.fragment(stored)
                except KeyError:  # let go between the two
                    stored = self._shard.next_stored(stored + 1)
                    continue
                self._handed.add(stored)
                self._sender.send(fragment)
                return
