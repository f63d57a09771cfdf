"""A local run from its first process to its summary: start, watch, drain, tell.

Every phase has a deadline: starting, each step of the drain, each question to the paramserver.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from headrace.clients.run import RunClient
from headrace.config.digest import config_digest, config_json
from headrace.config.sections import Config
from headrace.errors import HeadraceError
from headrace.events import EventLog
from headrace.local.addresses import choose_addresses
from headrace.local.cold_tier import REDIS, open_cold_tier
from headrace.local.collector import Collector
from headrace.local.ending import final_outcome, unsaved
from headrace.local.interrupts import Interrupts
from headrace.local.layout import EVALUATOR, LEARNER, PARAMSERVER, RELAY, REPLAY, SAMPLER, processes
from headrace.local.live import View
from headrace.local.plot import plot_runs
from headrace.local.process import last_words
from headrace.local.recorder import CollectorThread
from headrace.local.row import last_row, read_rows
from headrace.local.run_folder import RunFolder
from headrace.local.security import credentials_of, make_credentials
from headrace.local.summary import Outcome, build_summary, count_quarantined, read_summary, write_summary
from headrace.local.supervisor import Supervisor
from headrace.rpc.entry import EXIT_CONFIGURATION
from headrace.rpc.handshake import Handshake
from headrace.run_ledger import cold_totals, read_ledger
from headrace.types import RunView

START_DEADLINE_S = 300.0
"""Seconds until the first version must be there."""
_LAST_EVALUATION_S = 60.0
_MARGIN_S = 5.0
_PARAMSERVER_DRAIN_S = 30.0
_REPLAY_DRAIN_S = 15.0
_RELAY_DRAIN_S = 10.0
_TELL_S = 5.0
_TICK_S = 0.1


class LocalRun:
    """One run on this machine. The folder is made and locked by the caller; used from the main thread."""

    def __init__(
        self,
        *,
        config: Config,
        folder: RunFolder,
        view: View,
        interrupts: Interrupts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._folder = folder
        self._screen = view
        self._interrupts = interrupts
        self._clock = clock
        self._running_since: float | None = None
        self._warned: dict[str, str] = {}
        self._run_id = folder.run_id
        self._earlier = read_summary(folder)
        self._events = EventLog(folder.path, "launcher")
        self._addresses = choose_addresses(config)
        make_credentials(config, folder)
        self._client = RunClient(
            self._addresses.paramserver, self._handshake(), credentials=credentials_of(config, folder)
        )
        self._supervisor = Supervisor(
            config.restart, self._events, clock=clock, tell=view.say, is_over=self._is_over
        )
        self._collector = self._make_collector()
        self._thread = CollectorThread(
            self._collector,
            path=folder.metrics,
            tensorboard=folder.tensorboard if config.metrics.tensorboard else None,
            interval_s=config.metrics.interval_s,
        )

    def execute(self) -> tuple[Outcome, dict[str, Any], dict[str, str]]:
        """Run to the end. Returns how it ended, its summary, and why which files could not be written."""
        self._events.emit("run_start", run_id=self._run_id, config_digest=config_digest(self._config))
        try:
            outcome = self._start_and_watch()
            outcome = self._drain(outcome)
        finally:
            self._supervisor.kill_all()
            self._thread.stop()
            self._thread.close()
            self._client.close()
        self._events.emit("run_end", status=outcome.status, reason=outcome.reason)
        return self._conclude(outcome)

    def _start_and_watch(self) -> Outcome:
        try:
            redis = open_cold_tier(
                self._config,
                self._folder,
                self._addresses,
                say=self._screen.say,
                start=self._supervisor.start,
            )
            for spec in processes(
                self._config,
                self._folder,
                self._run_id,
                self._addresses,
                redis=redis,
                session=uuid.uuid4().hex,
            ):
                self._supervisor.start(spec)
            self._thread.start()
            return self._watch()
        except Exception as error:  # whatever happens to the launcher, the run is drained and summed up
            self._events.emit("launcher_error", reason=f"{type(error).__name__}: {error}")
            return Outcome("failed", f"the launcher failed: {type(error).__name__}: {error}")

    def _watch(self) -> Outcome:
        deadline = self._clock() + START_DEADLINE_S
        while True:
            self._supervisor.poll()
            statuses = self._supervisor.statuses()
            self._collector.watch(statuses)
            self._screen.show(self._thread.newest, statuses)
            self._warn()
            if self._interrupts.drain:
                return Outcome("interrupted", self._interrupts.reason)
            view = self._collector.view
            if view is not None and view.status.ended:
                return Outcome(view.status.phase, view.status.reason)
            started = view is not None and view.status.phase != "starting"
            reason = self._failure() or (None if started else self._late_start(deadline))
            if reason is not None:
                return Outcome("failed", reason)
            if started and self._time_is_up():
                return Outcome("finished", f"run.stop.wall_s: {self._config.run.stop.wall_s:g} s have passed")
            time.sleep(_TICK_S)

    def _warn(self) -> None:
        """Say once what can't be written, and that it can be again."""
        view = self._collector.view
        problems = self._thread.problems
        if view is not None and view.checkpoint_problem:
            problems["checkpoints"] = view.checkpoint_problem
        for what, problem in problems.items():
            if what not in self._warned:
                self._screen.say(f"Warning: {what} can't be written: {problem}. The run goes on.")
        if "checkpoints" in self._warned and "checkpoints" not in problems:
            self._screen.say("Checkpoints can be written again.")
        self._warned = problems

    def _is_over(self) -> bool:
        """Whether the paramserver says that the run has ended; what was heard last may be older."""
        view = state_or_none(self._client) or self._collector.view
        return view is not None and view.status.ended

    def _failure(self) -> str | None:
        """Why the run can't go on, if it can't."""
        for service in (PARAMSERVER, RELAY, REPLAY, LEARNER, SAMPLER, EVALUATOR):
            ends = self._supervisor.given_up(service)
            refused = [end for end in ends if end.returncode == EXIT_CONFIGURATION]
            if refused:
                return refused[0].reason
            if ends and not self._supervisor.alive(service) and self._needs(service):
                return ends[-1].reason
        return None

    def _needs(self, service: str) -> bool:
        """Without its evaluator a run goes on, unless nothing but an evaluation could end it."""
        stop = self._config.run.stop
        others = (stop.env_steps, stop.updates, stop.wall_s)
        return service != EVALUATOR or all(condition is None for condition in others)

    def _time_is_up(self) -> bool:
        """The paramserver ends a run at ``run.stop.wall_s``; one that was restarted counts from anew."""
        if self._running_since is None:
            self._running_since = self._clock()
        wall_s = self._config.run.stop.wall_s
        return wall_s is not None and self._clock() - self._running_since >= wall_s + _MARGIN_S

    def _late_start(self, deadline: float) -> str | None:
        if self._clock() < deadline:
            return None
        said = last_words(self._folder.log(LEARNER, 0))
        return f"no parameters were published within {START_DEADLINE_S:.0f} s; learner-0 last said: {said}"

    def _drain(self, outcome: Outcome) -> Outcome:
        """Samplers first, so that what they have made is still learned from; the store of record last."""
        self._screen.say(f"Stopping ({outcome.status}: {outcome.reason}). Ctrl-C stops hard.")
        self._supervisor.ending = True
        self._interrupts.draining()
        outcome = self._tell(outcome)
        self._thread.stop()
        self._thread.record()
        sampler_s, learner_s = self._config.sampler.drain_s, self._config.learner.drain_s
        self._stop(SAMPLER, grace_s=sampler_s + _MARGIN_S)
        # The last version is worth an evaluation, unless an evaluation is what has just ended the run.
        awaited = outcome.status == "finished" and self._collector.reached is None
        patience_s = _LAST_EVALUATION_S if awaited else 0.0
        if awaited and self._config.evaluation.enabled:
            self._screen.say(f"Waiting for the evaluation of the last version, at most {patience_s:.0f} s.")
        self._stop(EVALUATOR, grace_s=sampler_s + _MARGIN_S, patience_s=patience_s)
        self._stop(LEARNER, grace_s=learner_s + _MARGIN_S)
        self._stop(REPLAY, grace_s=_REPLAY_DRAIN_S)
        self._stop(REDIS, grace_s=_REPLAY_DRAIN_S)
        self._stop(RELAY, grace_s=_RELAY_DRAIN_S)
        self._collector.watch(self._supervisor.statuses())
        self._thread.record()
        self._warn()
        self._stop(PARAMSERVER, grace_s=_PARAMSERVER_DRAIN_S)
        end = self._supervisor.last_end(PARAMSERVER)
        return final_outcome(outcome, self._interrupts, unsaved(self._folder.path, self._collector.view, end))

    def _stop(self, service: str, *, grace_s: float, patience_s: float = 0.0) -> None:
        began = self._clock()
        killed = self._supervisor.stop(
            [service], grace_s=grace_s, patience_s=patience_s, hurry=lambda: self._interrupts.hard
        )
        self._events.emit("stopped", target=service, seconds=round(self._clock() - began, 2), killed=killed)

    def _tell(self, outcome: Outcome) -> Outcome:
        """Tell the paramserver, and through it everybody. If the run had ended before, that stands."""
        view = self._collector.view
        if (view is not None and view.status.ended) or self._supervisor.given_up(PARAMSERVER):
            return outcome
        phase: Literal["interrupted", "failed"] = "failed" if outcome.status == "failed" else "interrupted"
        try:
            status = self._client.stop(phase, outcome.reason, timeout_s=_TELL_S)
        except HeadraceError as error:
            self._events.emit("stop_not_told", reason=str(error))
            return outcome
        if status.phase == "finished" and outcome.status == "interrupted":
            return Outcome("finished", status.reason)
        return outcome

    def _conclude(self, outcome: Outcome) -> tuple[Outcome, dict[str, Any], dict[str, str]]:
        """Sum up, on the disk if it lets us; without a summary on the disk the run counts as failed."""
        unwritten = self._thread.problems
        summary = build_summary(
            run_id=self._run_id,
            config_digest=config_digest(self._config),
            outcome=outcome,
            collector=self._collector,
            ledger=read_ledger(self._folder.path, self._collector.view, run_over=True).totals(),
            restarts=self._supervisor.restarts(),
            quarantined=count_quarantined(self._folder.path),
            earlier=self._earlier,
            cold_tier=cold_totals(self._folder.path),
        )
        try:
            write_summary(self._folder, summary)
        except OSError as error:
            unwritten[self._folder.summary.name] = str(error)
            sentence = f"{self._folder.summary.name} could not be written: {error}"
            outcome = Outcome("failed", f"{sentence} (the run was {outcome.status}: {outcome.reason})")
            summary |= {"status": outcome.status, "reason": outcome.reason}
        try:
            draw_run(self._folder, self._config.run.stop.return_)
        except Exception as error:  # a missing picture is no reason to fail a run
            self._events.emit("plot_failed", reason=f"{type(error).__name__}: {error}")
        return outcome, summary, unwritten

    def _handshake(self) -> Handshake:
        return Handshake(
            run_id=self._run_id,
            config_digest=config_digest(self._config),
            peer="launcher",
            config_json=config_json(self._config),
        )

    def _make_collector(self) -> Collector:
        config = self._config
        return Collector(
            run_dir=self._folder.path,
            host=config.network.host,
            read_view=lambda: state_or_none(self._client),
            target_return=config.run.stop.return_,
            evaluated=config.evaluation.enabled,
            with_workers=config.environment.vectorization == "async",
            earlier=last_row(self._folder.metrics),
            clock=self._clock,
        )


def state_or_none(client: RunClient) -> RunView | None:
    """The state of the run; None if the paramserver doesn't answer just now."""
    with contextlib.suppress(HeadraceError):
        return client.state(timeout_s=1.0)
    return None


def draw_run(folder: RunFolder, target: float | None, out: Path | None = None) -> Path:
    """Draw the learning curve of one run."""
    return plot_runs({folder.path.name: read_rows(folder.metrics)}, out or folder.plot, target=target)
