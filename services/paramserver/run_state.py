"""Phase of the run and what ends it. Pure: told of versions and evaluations, asked for the phase."""

from __future__ import annotations

from collections.abc import Callable

from headrace.config.sections import StopConfig
from headrace.types import Evaluation, RunPhase, TrainingReport

_MEAN_OVER_EPISODES = 100  # a training return is the mean of that many episodes


class RunState:
    """Phase and reason. Invariant: the first end stays, whatever comes after it.

    ``wall_s`` counts from construction on the injected clock. With ``evaluated`` the target return
    must be reached by an evaluation, otherwise by the mean of 100 training episodes. Not thread-safe.
    """

    def __init__(self, stop: StopConfig, *, evaluated: bool, clock: Callable[[], float]) -> None:
        self._stop = stop
        self._evaluated = evaluated
        self._clock = clock
        self._started_at = clock()
        self.phase: RunPhase = "starting"
        self.reason = ""

    @property
    def ended(self) -> bool:
        """Whether the phase is final."""
        return self.phase not in ("starting", "running")

    @property
    def elapsed_s(self) -> float:
        """Seconds since this start of the run."""
        return self._clock() - self._started_at

    def on_version(self, report: TrainingReport) -> None:
        """A version with this report is there."""
        if self.phase == "starting":
            self.phase = "running"
        stop, mean = self._stop, report.episode_return_mean
        if stop.env_steps is not None and report.env_steps >= stop.env_steps:
            self.end("finished", f"run.stop.env_steps: {report.env_steps} of {stop.env_steps} done")
        if stop.updates is not None and report.updates >= stop.updates:
            self.end("finished", f"run.stop.updates: {report.updates} of {stop.updates} done")
        if stop.return_ is None or self._evaluated or mean is None:
            return
        if report.episodes >= _MEAN_OVER_EPISODES and mean >= stop.return_:
            self.end("finished", f"run.stop.return: {mean:.6g} in training (target {stop.return_:g})")

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """An evaluation came out."""
        target = self._stop.return_
        if self._evaluated and target is not None and evaluation.return_mean >= target:
            self.end(
                "finished",
                f"run.stop.return: {evaluation.return_mean:.6g} over {evaluation.episodes} evaluation "
                f"episodes of version {evaluation.version} (target {target:g})",
            )

    def on_time(self) -> None:
        """Time has passed."""
        if self._stop.wall_s is not None and self.elapsed_s >= self._stop.wall_s:
            self.end("finished", f"run.stop.wall_s: {self._stop.wall_s:g} s have passed")

    def end(self, phase: RunPhase, reason: str) -> None:
        """End the run, unless it has ended already."""
        if not self.ended:
            self.phase, self.reason = phase, reason
