"""How often learners exchange, where the run itself chooses: the decisions, told in events and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from headrace.events import EventLog
from headrace.sync.tuning import LocalStepsTuner
from headrace.types import TrainingReport
from services.paramserver.metrics import ParamserverMetrics
from services.paramserver.rounds.model import Part


class Tuning:
    """Looks at every round and says how many gradient steps learners should take until the next."""

    def __init__(self, events: EventLog, metrics: ParamserverMetrics) -> None:
        self._events = events
        self._metrics = metrics
        self._tuner = LocalStepsTuner()

    @property
    def steps(self) -> int:
        """Gradient steps until the next exchange."""
        return self._tuner.steps

    def observe(self, report: TrainingReport, parts: Sequence[Part]) -> None:
        """A round has closed."""
        idle_share = fmean(part.contribution.work.idle_share for part in parts)
        decision = self._tuner.observe(report.episode_return_mean, idle_share)
        if decision is None:
            return
        self._metrics.local_steps.set(decision.steps)
        self._metrics.return_jitter.set(decision.jitter)
        self._metrics.idle_share.set(decision.idle_share)
        if decision.steps != decision.before:
            self._events.emit(
                "local_steps",
                reason=decision.reason,
                steps=decision.steps,
                before=decision.before,
                jitter=round(decision.jitter, 4),
                idle_share=round(decision.idle_share, 4),
            )
