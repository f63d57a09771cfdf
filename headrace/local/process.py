"""One service process of a local run: how it is started, how its end is told."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One malloc arena setting for all services: page faults of fresh mmaps cost more than the copies
# they serve (measured 2x on streams of 1 MiB messages). All three belong together.
MALLOC_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "33554432",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
    "MALLOC_TOP_PAD_": "16777216",
}
_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to start. ``service`` is the kind (sampler, evaluator, learner, paramserver, relay, replay)."""

    service: str
    index: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log_path: Path

    @property
    def name(self) -> str:
        """``<service>-<index>``."""
        return f"{self.service}-{self.index}"


_LEFT_UNASKED = (
    "its environment may have ended the process "
    "(environment.vectorization: async keeps environments in processes of their own)"
)


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """How a process ended. ``returncode`` as in subprocess: negative is the signal.

    ``final``: why it will not be started again, empty if it may be.
    """

    name: str
    returncode: int
    last_words: str
    final: str = ""

    @property
    def unasked_reason(self) -> str:
        """The same for a process that nobody had asked to leave."""
        if self.returncode == 0 and self.name.startswith("sampler-"):
            return f"{self.reason}: {_LEFT_UNASKED}"
        return self.reason

    @property
    def reason(self) -> str:
        """A sentence for people."""
        if self.returncode < 0:
            how = f"was killed by {_signal_name(-self.returncode)}"
        else:
            how = f"ended with exit code {self.returncode}"
        # What a killed process logged last says nothing about why it was killed.
        told = self.last_words if self.returncode > 0 else ""
        sentence = f"{self.name} {how}: {told}" if told else f"{self.name} {how}"
        return f"{sentence}; {self.final}" if self.final else sentence


def spawn(spec: ProcessSpec) -> subprocess.Popen[bytes]:
    """Start it in a session of its own, output appended to its log, dying with this process (Linux).

    The signal for the parent's death is tied to the thread that spawns, so that must be the main thread.
    """
    spec.log_path.parent.mkdir(parents=True, exist_ok=True)
    with spec.log_path.open("ab") as log:
        return subprocess.Popen(
            spec.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **MALLOC_ENVIRONMENT, "PYTHONUNBUFFERED": "1", **spec.environment},
            start_new_session=True,
            preexec_fn=_die_with_parent(os.getpid()),
        )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process and to whatever it started (environment workers)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def last_words(log_path: Path) -> str:
    """The last line of a log that says something; of a JSON line its event and error."""
    try:
        with log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        if line.strip():
            return _sentence(line.strip())
    return ""


def _sentence(line: str) -> str:
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return line[:500]
    if not isinstance(entry, dict):
        return line[:500]
    details = entry.get("details")
    entry = {**(details if isinstance(details, dict) else {}), **entry}
    parts = [str(entry[key]) for key in ("event", "reason", "error") if entry.get(key)]
    return ": ".join(dict.fromkeys(parts))[:500] or line[:500]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _die_with_parent(parent: int) -> Callable[[], None] | None:
    """For the child, between fork and exec: SIGKILL when the launcher is gone, also if it already is."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask
