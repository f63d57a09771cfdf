"""``RUN/events.jsonl``: what happened to a run (restarts, drops, quarantines), each with its reason.

Every process of a run appends to the same file. One event is one ``write`` to a descriptor opened
for appending, so lines of different processes never mix.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace import logs

FILE_NAME = "events.jsonl"
PER_KIND_AND_MINUTE = 60
"""Events of one kind that one process writes in a minute; the rest is counted in ``suppressed``."""
_MAX_KINDS = 256

OnEvent = Callable[..., None]
"""Hears ``(kind, **fields)``; :meth:`EventLog.emit` is one."""


def no_event(_kind: str, **_fields: Any) -> None:
    """Hears nothing."""


class EventLog:
    """Appends events of one process. Never raises for a full or vanished disk: the run matters more.

    Without a run folder the events go to the log only. ``_lock`` guards the rate window of each kind.
    """

    def __init__(
        self, run_dir: Path | None, service: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = None if run_dir is None else run_dir / FILE_NAME
        self._service = service
        self._clock = clock
        self._logger = logs.get_logger("headrace.events")
        self._lock = threading.Lock()
        self._windows: dict[str, _Window] = {}

    def emit(self, kind: str, **fields: Any) -> None:
        """Append one event, e.g. ``emit("restart", reason="signal 9", target="sampler-0")``.

        ``kind`` is a short constant word. Events past the rate limit are dropped; the next one of
        that kind that is written says how many in ``suppressed``.
        """
        with self._lock:
            if kind not in self._windows and len(self._windows) >= _MAX_KINDS:
                return
            suppressed = self._windows.setdefault(kind, _Window()).admit(self._clock())
        if suppressed is None:
            return
        if suppressed:
            fields["suppressed"] = suppressed
        self._logger.info(kind, details=fields)
        if self._path is not None:
            event = {"time": time.time(), "service": self._service, "kind": kind, **fields}
            self._append(self._path, event)

    def _append(self, path: Path, event: dict[str, Any]) -> None:
        line = (json.dumps(event, separators=(",", ":"), default=plain) + "\n").encode()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._logger.warning("an event could not be written", path=str(path), error=str(error))


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """All events of a run, in the order they were written; a torn last line is left out."""
    path = run_dir / FILE_NAME
    events = []
    if path.exists():
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue
    return events


def plain(value: Any) -> Any:
    """For ``json.dumps(default=...)``: numpy scalars and arrays as JSON, everything else as text."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value)


class _Window:
    """Events of one kind in the running minute."""

    def __init__(self) -> None:
        self._started = 0.0
        self._written = 0
        self._suppressed = 0

    def admit(self, now: float) -> int | None:
        """None: too many. Else the number suppressed since the last one admitted."""
        if self._written == 0 or now - self._started >= 60.0:
            self._started, self._written = now, 0
        if self._written >= PER_KIND_AND_MINUTE:
            self._suppressed += 1
            return None
        self._written += 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
