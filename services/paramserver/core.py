"""The parameter server itself: every change of versions, checkpoints and run state goes through here."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from headrace.checkpoint import CheckpointDirectory, Journal, VersionRecord, find_non_finite
from headrace.errors import HeadraceError, InvalidDataError, NonFiniteError, UnavailableError
from headrace.events import EventLog
from headrace.rpc.backoff import Backoff
from headrace.types import Evaluation, PolicyVersion, RunStatus, RunView
from services.paramserver.checkpointer import Checkpointer, CheckpointPolicy
from services.paramserver.config import Settings
from services.paramserver.issued import Issued, IssuedFile
from services.paramserver.metrics import ParamserverMetrics
from services.paramserver.recovery import recover
from services.paramserver.run_state import RunState
from services.paramserver.versions import Update, Versions

_RETRY_S = (1.0, 30.0)  # a checkpoint that failed


@dataclass(frozen=True, slots=True)
class PublishAnswer:
    """The version issued; whether the next publish should carry the training state; the run's state."""

    version: PolicyVersion
    want_training: bool
    status: RunStatus


class ParameterServer:
    """Versions, checkpoints and run state of one run.

    Invariants: a number is on disk before its version is visible; what is visible only gets newer.
    ``_publishing`` lets one publish at a time reach the disk and is taken before ``_changed``;
    ``_changed`` guards versions and run state and is never held while the disk is used.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        events: EventLog,
        metrics: ParamserverMetrics,
        clock: Callable[[], float] = time.monotonic,
        rng: np.random.Generator | None = None,
    ) -> None:
        """Recover from ``settings.run_dir`` and begin a new epoch. ConfigurationError: it is in use."""
        self._settings = settings
        self._events = events
        self._metrics = metrics
        self._issued = IssuedFile(settings.run_dir)
        self._journal = Journal(settings.run_dir)
        directory = CheckpointDirectory(settings.run_dir)
        found = recover(
            settings, directory=directory, issued=self._issued, journal=self._journal, events=events
        )
        self._publishing = threading.Lock()
        self._changed = threading.Condition()
        self._versions = Versions(epoch=found.epoch, highest=found.highest, recovered=found.record)
        self._policy = CheckpointPolicy(every=settings.checkpoint_every, last_saved=found.checkpoint)
        self._run = RunState(settings.stop, evaluated=settings.evaluated, clock=clock)
        self._best = directory.best()
        self._journal_works = True
        self._checkpointer = Checkpointer(
            directory,
            keep=settings.keep,
            before_save=self._issued.sync,
            events=events,
            metrics=metrics,
            backoff=Backoff(*_RETRY_S, rng or np.random.default_rng()),
            clock=clock,
        )
        self._checkpointer.start()
        self._resume(found.record)

    def publish(self, update: Update) -> PublishAnswer:
        """Issue the next version. Saying the newest one again is answered with its version.

        Raises NonFiniteError (names the tensor), CodecError, InvalidDataError (accounts fell),
        FencedError (not from the newest version), UnavailableError (the number can't be written).
        """
        try:
            wrong = find_non_finite(update.acting.decode())
            if wrong is not None:
                raise NonFiniteError(f"parameters refused, the newest version stays: {wrong}")
            with self._publishing:
                return self._publish(update)
        except HeadraceError as error:
            self._metrics.publishes.labels(outcome="refused").inc()
            self._events.emit("publish_refused", reason=str(error), base=str(update.base))
            raise

    def fetch(self) -> VersionRecord | None:
        """The newest version, for a learner that starts; None if there is none.

        If versions were lost (large ones, since the last checkpoint), what was recovered is issued
        again under a new number: from here on it is the newest there is, for watchers too.
        """
        with self._publishing:
            with self._changed:
                record, lost = self._versions.newest, self._versions.rolled_back
                version, highest = self._versions.next_version, self._versions.highest
            if record is None or not lost:
                return record
            issued = record.renumbered(version)
            self._reserve(version)
            self._keep(issued)
            self._show(issued)
            self._events.emit(
                "rolled_back",
                reason="versions since the last checkpoint were lost with the server and the learner",
                to=str(record.version),
                lost_from=str(highest),
                issued_as=str(version),
            )
            return issued

    @property
    def epoch(self) -> int:
        """Which start of the parameter server in this run this is."""
        return self._versions.epoch

    def misses(self, version: PolicyVersion) -> bool:
        """Whether ``version``, of an earlier epoch, is newer than anything left here, or nothing is here."""
        with self._changed:
            newest, epoch = self._versions.newest, self._versions.epoch
            return newest is None or (version.epoch < epoch and version.number > newest.version.number)

    def wait(
        self, have: PolicyVersion | None, known: RunStatus | None, timeout_s: float
    ) -> tuple[VersionRecord | None, RunStatus]:
        """The newest version if it is newer than ``have``, and the run's state.

        Waits up to ``timeout_s`` seconds until there is one, or phase or reason differ from ``known``.
        """

        def is_newer() -> bool:
            newest = self._versions.newest
            return newest is not None and (have is None or newest.version > have)

        def differs() -> bool:
            return known is None or (known.phase, known.reason) != (self._run.phase, self._run.reason)

        with self._changed:
            self._changed.wait_for(lambda: is_newer() or differs(), timeout_s)
            return (self._versions.newest if is_newer() else None), self._status()

    def status(self) -> RunStatus:
        """Phase, reason and newest version ever issued."""
        with self._changed:
            return self._status()

    def view(self) -> RunView:
        """The run at a glance."""
        problem = self._checkpointer.problem
        with self._changed:
            newest = self._versions.newest
            if newest is None:
                return RunView(self._status(), best=self._best, checkpoint_problem=problem)
            return RunView(self._status(), newest.report, newest.accounts, self._best, problem)

    def stop(self, phase: Literal["interrupted", "failed"], reason: str) -> RunStatus:
        """End the run and save its newest version; the first reason stays."""
        self._advance(lambda: self._run.end(phase, reason))
        return self.status()

    def on_time(self) -> None:
        """Time has passed: see whether the run has ended by it. Call about once a second."""
        self._advance(self._run.on_time)

    def begin_evaluation(self, version: PolicyVersion) -> bool:
        """Keep ``version`` until its result is in. False: it is gone already."""
        with self._changed:
            return self._versions.begin_evaluation(version)

    def report_evaluation(self, evaluation: Evaluation) -> tuple[bool, RunStatus]:
        """Take in a result; whether it is the best so far (then it becomes checkpoint ``best``).

        Raises InvalidDataError if it is not finite.
        """
        if not (math.isfinite(evaluation.return_mean) and math.isfinite(evaluation.return_std)):
            raise InvalidDataError(f"the evaluation of version {evaluation.version} is not finite")
        version = evaluation.version
        with self._changed:
            evaluation = replace(evaluation, env_steps=self._versions.env_steps_at(version))
            record = self._versions.end_evaluation(version)
            is_best = self._best is None or evaluation.return_mean > self._best.return_mean
            if is_best:
                self._best = evaluation
                self._metrics.best_return.set(evaluation.return_mean)
        self._metrics.evaluation_return.set(evaluation.return_mean)
        if is_best and record is not None:
            self._checkpointer.request_best(record, evaluation)
        elif is_best:
            self._events.emit(
                "best_not_kept",
                reason="its parameters were no longer in memory when the result came",
                version=str(version),
            )
        self._advance(lambda: self._run.on_evaluation(evaluation))
        return is_best, self.status()

    def wait_saved(self, timeout_s: float) -> bool:
        """Wait until all requested checkpoints are on disk. False after ``timeout_s`` seconds."""
        return self._checkpointer.wait_idle(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Save the newest version and release the run's folder. False: it could not be saved in time."""
        with self._changed:
            newest = self._versions.newest
        if newest is not None:
            self._checkpointer.request(newest)
        saved = self._checkpointer.close(timeout_s)
        self._issued.close()
        return saved

    def _resume(self, record: VersionRecord | None) -> None:
        self._metrics.epoch.set(self._versions.epoch)
        if self._best is not None:
            self._metrics.best_return.set(self._best.return_mean)
        if record is None:
            return
        highest = self._versions.highest
        self._metrics.policy_version.set(record.version.number if highest is None else highest.number)
        self._advance(lambda: self._run.on_version(record.report))
        best = self._best
        if best is not None:
            self._advance(lambda: self._run.on_evaluation(best))

    def _publish(self, update: Update) -> PublishAnswer:
        with self._changed:
            again = self._versions.repeated(update)
            if again is None:
                self._versions.admit(update)
            version = self._versions.next_version
        settings = self._settings
        record = again or VersionRecord(
            version=version,
            run_id=settings.run_id,
            config_digest=settings.config_digest,
            config_json=settings.config_json,
            report=update.report,
            accounts=update.accounts,
            acting=update.acting,
            training=update.training,
            contributors=update.contributors,
        )
        if again is None:
            self._reserve(version)
        self._keep(record)
        self._show(record)
        self._metrics.publishes.labels(outcome="issued" if again is None else "repeated").inc()
        if again is None and self._policy.wants(record):
            self._checkpointer.request(record)
        with self._changed:
            ended = self._run.ended
        if again is not None and ended:
            self._checkpointer.request(record)
        self._advance(lambda: self._run.on_version(record.report))
        status = self.status()
        return PublishAnswer(record.version, self._policy.asks(record, ended=status.ended), status)

    def _reserve(self, version: PolicyVersion) -> None:
        """Make sure that the number of ``version`` is never given out again."""
        try:
            self._issued.write(Issued(version.epoch, version))
        except OSError as error:
            raise UnavailableError(
                f"no version can be issued, its number can't be written: {error}"
            ) from error

    def _keep(self, record: VersionRecord) -> None:
        """Let the version survive a kill, if it is small. Without that the run goes on all the same."""
        try:
            self._journal.write(record)
            self._journal_works = True
        except OSError as error:
            self._metrics.journal_failures.inc()
            if self._journal_works:
                self._events.emit("journal_failed", reason=str(error))
            self._journal_works = False

    def _show(self, record: VersionRecord) -> None:
        with self._changed:
            self._versions.install(record)
            self._metrics.held_bytes.set(self._versions.held_bytes)
            self._metrics.policy_version.set(record.version.number)
            self._changed.notify_all()

    def _advance(self, change: Callable[[], None]) -> None:
        """Change the run's state; once it ends, say so and save the newest version."""
        with self._changed:
            before = self._run.phase
            ended_before = self._run.ended
            change()
            status, newest, ended = self._status(), self._versions.newest, self._run.ended
            self._metrics.run_ended.set(ended)
            if before != status.phase:
                self._changed.notify_all()
        if ended and not ended_before:
            self._events.emit(
                "run_ended", phase=status.phase, reason=status.reason, version=str(status.version)
            )
            if newest is not None:
                self._checkpointer.request(newest)

    def _status(self) -> RunStatus:
        return RunStatus(self._run.phase, self._run.reason, self._versions.highest)
