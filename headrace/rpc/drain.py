"""Leaving in order: the first SIGTERM or SIGINT asks for a drain, the second one stops hard."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class Drain:
    """The wish to stop. Wait on it, poll it, or raise it yourself with :meth:`request`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason = ""

    @property
    def requested(self) -> bool:
        """Whether somebody asked to stop."""
        return self._event.is_set()

    @property
    def reason(self) -> str:
        """Why, e.g. "SIGTERM"; empty while nobody asked. The first reason stays."""
        return self._reason

    def request(self, reason: str) -> None:
        """Ask for a drain."""
        if not self._event.is_set():
            self._reason = reason
            self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds; true once a drain is requested."""
        return self._event.wait(timeout_s)

    def when_requested(self, act: Callable[[], None]) -> None:
        """Have ``act`` called once a drain is requested: in a thread, signal handlers must not block."""

        def watch() -> None:
            self._event.wait()
            act()

        threading.Thread(target=watch, name="drain-watch", daemon=True).start()

    def install(self) -> None:
        """Turn SIGTERM and SIGINT into a drain. Call it in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._event.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.request(signal.Signals(number).name)
