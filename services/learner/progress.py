"""The counters of a whole run, as the learner keeps them; they go on after a restart of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.config.sections import StopConfig
from headrace.types import Array, TrainingReport


@dataclass(slots=True)
class Progress:
    """How far the run is. ``recent_returns`` are of the last 100 finished training episodes."""

    env_steps: int = 0
    updates: int = 0
    samples_trained: int = 0
    episodes: int = 0
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))

    def add_episodes(self, returns: Iterable[float]) -> None:
        """Take in episodes that ended, by their returns."""
        for value in returns:
            self.episodes += 1
            self.recent_returns.append(float(value))

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
