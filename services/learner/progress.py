"""The counters of a whole run, as the learner keeps them; they go on after a restart of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.config.sections import StopConfig
from headrace.types import Array, TrainingReport

if TYPE_CHECKING:
    from services.learner.exchanging import Learned


@dataclass(slots=True)
class Progress:
    """How far the run is. ``recent_returns`` are of the last 100 finished training episodes."""

    env_steps: int = 0
    updates: int = 0
    samples_trained: int = 0
    episodes: int = 0
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))

    def add(self, learned: Learned) -> None:
        """One more update, and what was done for it."""
        self.updates += 1
        self.samples_trained += learned.samples
        if not learned.counts_whole_run:
            self.env_steps += learned.env_steps
            self.episodes += learned.episodes
            self.recent_returns.extend(learned.returns)
            return
        self.env_steps = max(self.env_steps, learned.env_steps)
        if learned.episodes >= self.episodes:
            self.episodes = learned.episodes
            self.recent_returns = deque(learned.returns, maxlen=self.recent_returns.maxlen)

    def go_on_from(self, report: TrainingReport) -> None:
        """Somebody else counts for the whole run, and has come to this."""
        self.env_steps, self.updates = report.env_steps, report.updates
        self.samples_trained, self.episodes = report.samples_trained, report.episodes

    def share(self, stop: StopConfig) -> float:
        """How far the run is, in [0, 1], for schedules: by environment steps, else by updates."""
        if stop.env_steps is not None:
            return min(1.0, self.env_steps / stop.env_steps)
        if stop.updates is not None:
            return min(1.0, self.updates / stop.updates)
        return 0.0

    def report(self, losses: Mapping[str, float], lags: tuple[int, ...]) -> TrainingReport:
        """What the newest update tells the world; ``lags`` are those of what it has learned from."""
        returns = self.recent_returns
        return TrainingReport(
            env_steps=self.env_steps,
            updates=self.updates,
            samples_trained=self.samples_trained,
            episodes=self.episodes,
            episode_return_mean=float(np.mean(returns)) if returns else None,
            episode_return_std=float(np.std(returns)) if returns else None,
            metrics=dict(losses),
            policy_lags=lags,
        )

    def to_columns(self) -> dict[str, Array]:
        """As arrays, for the training blob."""
        return {
            "progress/recent_returns": np.array(self.recent_returns, np.float64),
            "progress/counters": np.array(
                [self.env_steps, self.updates, self.samples_trained, self.episodes], np.int64
            ),
        }

    @classmethod
    def from_columns(cls, training: Mapping[str, Array], report: TrainingReport) -> Progress:
        """Counters from the version's report (always as new as its parameters); returns from the blob."""
        progress = cls(report.env_steps, report.updates, report.samples_trained, report.episodes)
        progress.recent_returns.extend(float(v) for v in training.get("progress/recent_returns", np.empty(0)))
        return progress
