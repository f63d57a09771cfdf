"""Writes checkpoints in a thread of its own, so that a slow or full disk never holds up a version."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.checkpoint import CheckpointDirectory, VersionRecord
from headrace.events import EventLog
from headrace.rpc.backoff import Backoff
from headrace.types import Evaluation
from services.paramserver.metrics import ParamserverMetrics


class CheckpointPolicy:
    """When a checkpoint is due, and when the learner should send its training state along.

    Pure. Invariant: at most one version goes by between due and saved, where the learner sends the
    training state only when asked.
    """

    def __init__(self, *, every: int, last_saved: int | None) -> None:
        self._every = every
        self._last = last_saved
        self._asked = False

    def wants(self, record: VersionRecord) -> bool:
        """Whether to save ``record``. A due one without training state is passed over once."""
        if not self._due(record.version.number):
            return False
        if record.training is None and not self._asked:
            self._asked = True
            return False
        self._last = record.version.number
        self._asked = False
        return True

    def asks(self, record: VersionRecord, *, ended: bool) -> bool:
        """Whether the publish after ``record`` (or again of it, once the run has ended) should carry it."""
        if ended:
            return record.training is None
        if self._due(record.version.number + 1):
            self._asked = True
        return self._asked

    def _due(self, number: int) -> bool:
        return self._last is None or number - self._last >= self._every


class Checkpointer:
    """Saves the newest requested version and the newest best one; retries what failed.

    ``_changed`` guards what is pending, ``_busy`` and ``_problem``. Of the versions requested meanwhile
    only the newest is saved: nothing queues up behind a slow disk.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        *,
        keep: int,
        before_save: Callable[[], None],
        events: EventLog,
        metrics: ParamserverMetrics,
        backoff: Backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``before_save`` makes durable what must not be older than a checkpoint; may raise OSError."""
        self._directory = directory
        self._keep = keep
        self._before_save = before_save
        self._events = events
        self._metrics = metrics
        self._backoff = backoff
        self._clock = clock
        self._changed = threading.Condition()
        self._pending: VersionRecord | None = None
        self._pending_best: tuple[VersionRecord, Evaluation] | None = None
        self._busy = False
        self._problem = ""
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="checkpointer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def request(self, record: VersionRecord) -> None:
        """Save this version, unless a newer one is requested before its turn comes."""
        with self._changed:
            self._pending = record
            self._changed.notify_all()

    def request_best(self, record: VersionRecord, evaluation: Evaluation) -> None:
        """Save this version as the best."""
        with self._changed:
            self._pending_best = (record, evaluation)
            self._changed.notify_all()

    @property
    def problem(self) -> str:
        """Why the last attempt to write failed; empty if it didn't."""
        with self._changed:
            return self._problem

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until everything requested is on the disk. False after ``timeout_s`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._has_work and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Finish what is pending, within ``timeout_s`` seconds, and end. False: something is not on disk."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._changed:
            return not self._has_work and not self._busy

    @property
    def _has_work(self) -> bool:
        return self._pending is not None or self._pending_best is not None

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._has_work or self._closing)
                if not self._has_work:
                    return
                record, best, self._busy = self._pending, self._pending_best, True
            error = self._write(record, best)
            with self._changed:
                self._busy = False
                self._problem = "" if error is None else str(error)
                if error is None:
                    self._pending = None if self._pending is record else self._pending
                    self._pending_best = None if self._pending_best is best else self._pending_best
                self._changed.notify_all()
                if error is not None:
                    if self._closing:
                        return
                    self._changed.wait(self._backoff.next_s())

    def _write(
        self, record: VersionRecord | None, best: tuple[VersionRecord, Evaluation] | None
    ) -> Exception | None:
        started = self._clock()
        try:
            self._before_save()
            if record is not None:
                self._directory.save(record)
                self._metrics.checkpoint_version.set(record.version.number)
            if best is not None:
                self._directory.save(best[0])
                self._directory.mark_best(best[1])
            self._directory.prune(self._keep)
        except Exception as error:  # whatever it is: versions go on, and it is tried again
            self._metrics.checkpoint_failures.inc()
            self._events.emit("checkpoint_failed", reason=str(error), failures=self._backoff.failures + 1)
            return error
        self._metrics.checkpoint_seconds.observe(self._clock() - started)
        self._tell_success(record, best)
        return None

    def _tell_success(
        self, record: VersionRecord | None, best: tuple[VersionRecord, Evaluation] | None
    ) -> None:
        if self._backoff.failures:
            self._events.emit("checkpoint_recovered", failures=self._backoff.failures)
            self._backoff.reset()
        if record is not None:
            told: dict[str, Any] = {"version": str(record.version), "nbytes": record.nbytes}
            self._events.emit("checkpoint", **told, with_training=record.training is not None)
        if best is not None:
            self._events.emit(
                "best",
                version=str(best[1].version),
                return_mean=best[1].return_mean,
                episodes=best[1].episodes,
            )
