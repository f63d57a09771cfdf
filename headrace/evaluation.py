"""Evaluation: act with fixed parameters until a number of episodes is over, and report their returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.envs.lanes import LaneStep
from headrace.types import Array


class EvaluatedLanes(Protocol):
    """What an evaluation needs of its environments; :class:`headrace.envs.lanes.Lanes` is one."""

    @property
    def num_lanes(self) -> int:
        """B."""
        ...

    def reset(self) -> dict[str, Array]:
        """First observations, leaves ``[B, ...]``."""
        ...

    def step(self, actions: dict[str, Array]) -> LaneStep:
        """One step of every lane."""
        ...


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Undiscounted returns and lengths, one entry an episode."""

    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns (population)."""
        return float(self.returns.std())


def evaluate(
    lanes: EvaluatedLanes,
    choose: Callable[[dict[str, Array]], dict[str, Array]],
    *,
    episodes: int,
    stop: Callable[[], bool] = lambda: False,
) -> EvaluationResult | None:
    """Run ``episodes`` episodes with ``choose`` (observation leaves to action leaves); None if stopped.

    Every lane contributes a fixed number of its first episodes. Taking whichever episodes end first
    would favor short ones.
    """
    quota = np.full(lanes.num_lanes, episodes // lanes.num_lanes)
    quota[: episodes % lanes.num_lanes] += 1
    returns: list[float] = []
    lengths: list[int] = []
    observation = lanes.reset()
    while len(returns) < episodes:
        if stop():
            return None
        step = lanes.step(choose(observation))
        observation = step.observation
        for episode in step.episodes:
            if quota[episode.lane] > 0:
                quota[episode.lane] -= 1
                returns.append(episode.return_)
                lengths.append(episode.length)
    return EvaluationResult(np.array(returns, np.float64), np.array(lengths, np.int64))
