"""Watches what a system and all processes it starts need: memory while it runs, CPU seconds at its end."""

from __future__ import annotations

import resource
import threading
from dataclasses import dataclass, field

import psutil

MB = 1e6


def tree(pid: int) -> list[psutil.Process]:
    """The process and everything below it that is alive now."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def resident_bytes(process: psutil.Process) -> int:
    """Resident memory; 0 if the process has just ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


@dataclass(slots=True)
class PeakMemory:
    """Largest sum of resident memory of a process tree while the ``with`` block runs, every ``interval_s``.

    Pages that processes share are counted once for each of them, in every system alike.
    """

    pid: int
    interval_s: float = 0.25
    peak_bytes: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> PeakMemory:
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self.interval_s):
            self.peak_bytes = max(self.peak_bytes, sum(map(resident_bytes, tree(self.pid))))


def children_cpu_s() -> float:
    """CPU seconds of all descendants that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
