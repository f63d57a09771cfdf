"""A heater in a leaky room: an environment of one's own, in one file that knows nothing of Headrace."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Observation = npt.NDArray[np.float32]


class Thermostat(gym.Env[Observation, np.int64]):
    """Hold a room at its target temperature with a heater that is off, low or high.

    Observation: room and outside temperature relative to the target, in degrees. Reward: minus the
    distance to the target in degrees, at most 5, minus a little for heating. The room never stops
    existing, so an episode has no end of its own: the configuration caps it with
    ``environment.max_episode_steps``, which counts as a truncation.
    """

    def __init__(self, leak: float = 0.1) -> None:
        self.observation_space = spaces.Box(-60.0, 60.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._leak = leak
        self._room = self._outside = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw weather and a room that is too cold or too warm."""
        super().reset(seed=seed)
        self._outside = float(self.np_random.uniform(-20.0, -5.0))
        self._room = float(self.np_random.uniform(-10.0, 5.0))
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Heat for one minute."""
        heating = float(action) * 1.5
        self._room += heating + self._leak * (self._outside - self._room)
        reward = -min(abs(self._room), 5.0) - 0.05 * float(action)
        return self._observation(), reward, False, False, {}

    def _observation(self) -> Observation:
        return np.array([self._room, self._outside], np.float32)
