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
        self._last = ""
        self._before: dict[int, Any] = {}

    @property
    def drain(self) -> bool:
        """Somebody asked to stop."""
        return self._count >= 1

    @property
    def hard(self) -> bool:
        """Somebody asked again, or while the run was ending anyway: kill everything."""
        return self._count >= 2

    @property
    def reason(self) -> str:
        """Why, for people."""
        return _spoken(self._name)

    @property
    def hard_reason(self) -> str:
        """What made the stop a hard one, for people."""
        return f"{_spoken(self._last)} again" if self._name else _spoken(self._last)

    def request(self, name: str) -> None:
        """Count one wish to stop."""
        if self._count == 0:
            self._name = name
        self._last = name
        self._count += 1

    def draining(self) -> None:
        """The run is being left, whoever wanted it: from now on one wish is enough for a hard stop."""
        self._count = max(1, self._count)

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


def _spoken(name: str) -> str:
    return "Ctrl-C" if name == "SIGINT" else name
