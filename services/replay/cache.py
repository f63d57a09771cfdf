"""Decoded chunks that were drawn from lately, within a bound in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from headrace.types import Fragment


class FragmentCache:
    """Least recently used leaves first. Thread-safe: ``_lock`` guards everything."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[int, tuple[Fragment, int]] = OrderedDict()
        self.nbytes = 0

    def take(self, chunks: Sequence[int]) -> dict[int, Fragment]:
        """Those of ``chunks`` that are held."""
        found = {}
        with self._lock:
            for chunk in chunks:
                held = self._held.get(chunk)
                if held is not None:
                    self._held.move_to_end(chunk)
                    found[chunk] = held[0]
        return found

    def put(self, chunk: int, fragment: Fragment, nbytes: int) -> None:
        """Hold one; others leave for it. One that is larger than the cache is not held."""
        if nbytes > self._capacity:
            return
        with self._lock:
            self._drop(chunk)
            self._held[chunk] = (fragment, nbytes)
            self.nbytes += nbytes
            while self.nbytes > self._capacity:
                self._drop(next(iter(self._held)))

    def forget(self, chunk: int) -> None:
        """Let go of one, if it is held."""
        with self._lock:
            self._drop(chunk)

    def _drop(self, chunk: int) -> None:
        held = self._held.pop(chunk, None)
        if held is not None:
            self.nbytes -= held[1]
