"""Makes a process slow from outside: it runs only a share of the time."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType

import psutil


class Slowed:
    """While the ``with`` block runs, process ``pid`` is stopped for all but ``share`` of each period.

    What computes all the time takes 1 / ``share`` times as long; what mostly waits is slowed less. The
    process is running again afterwards.
    """

    def __init__(self, pid: int, share: float, *, period_s: float = 0.1) -> None:
        self._pid = pid
        self._on_s, self._off_s = share * period_s, (1.0 - share) * period_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slowing", daemon=True)

    def __enter__(self) -> Slowed:
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it may end at any time; psutil never takes another for it
            process = psutil.Process(self._pid)
            try:
                while not self._over.wait(self._on_s):
                    process.suspend()
                    self._over.wait(self._off_s)
                    process.resume()
            finally:
                process.resume()
