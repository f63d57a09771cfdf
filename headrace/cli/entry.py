"""Where ``headrace`` begins: a Ctrl-C or SIGTERM leaves quietly even while the rest is still being loaded."""

from __future__ import annotations

import os
import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_FAILED = 1


def main() -> None:
    """Load the command line and run it."""
    _on_signals(_leave)  # nothing to tidy up yet
    from headrace.cli import main as command_line

    # From here on a signal unwinds the stack, so that what was begun (a probe, its folder) is tidied up.
    # While a run goes on the launcher counts signals instead.
    _on_signals(_interrupt)
    try:
        command_line.main()
    except KeyboardInterrupt:
        raise SystemExit("Interrupted.") from None
    finally:
        _on_signals(signal.SIG_DFL)  # the interpreter's own end may be cut short without a word


def _on_signals(handler: object) -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
            signal.signal(number, handler)  # type: ignore[arg-type]


def _leave(_number: int, _frame: FrameType | None) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(_EXIT_FAILED)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


if __name__ == "__main__":
    main()
