"""Ctrl-C: the first one asks for a drain, the second one stops hard. SIGTERM and SIGHUP count the same."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Counts signals while it is entered as a context; the handlers before are put back after it."""

    def __init__(self) -> None:
        self._count = 0
        self._name = ""
        self._before: dict[int, Any] = {}

    @property
    def drain(self) -> bool:
        """Somebody asked to stop."""
        return self._count >= 1

    @property
    def hard(self) -> bool:
        """Somebody asked again: kill everything."""
        return self._count >= 2

    @property
    def reason(self) -> str:
        """Why, for people."""
        return "Ctrl-C" if self._name == "SIGINT" else self._name

    def request(self, name: str) -> None:
        """Count one wish to stop."""
        self._name = self._name or name
        self._count += 1

    def __enter__(self) -> Interrupts:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)
