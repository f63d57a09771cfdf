"""Environments that look at how lanes treat them."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

import environments
import gymnasium as gym
import numpy as np
from gymnasium import spaces

ALIVE: weakref.WeakSet[Any] = weakref.WeakSet()
STEPPING = threading.Event()
GO_ON = threading.Event()


class GreedyEnv(environments.EndlessEnv):
    """Changes its action in place."""

    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> environments.Step:
        action *= 0
        return super().step(action)


class Info(dict[str, Any]):
    """An info that a weak reference can watch."""

    __hash__ = object.__hash__


class TracedInfoEnv(environments.CountingEnv):
    """Every info it gives is in ``ALIVE`` for as long as anything keeps it."""

    def step(self, action: Any) -> environments.Step:
        observation, reward, terminated, truncated, _ = super().step(action)
        info = Info()
        ALIVE.add(info)
        return observation, reward, terminated, truncated, info


class WaitingEnv(environments.EndlessEnv):
    """Waits in ``step`` until a test lets it go on."""

    def step(self, action: Any) -> environments.Step:
        STEPPING.set()
        GO_ON.wait(30)
        return super().step(action)


class ModulesEnv(gym.Env[Any, Any]):
    """Observes which of some modules its process has imported."""

    watched = ("torch", "grpc", "services", "headrace.v1", "headrace.clients")
    observation_space = spaces.MultiBinary(len(watched))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: environments.Options = None) -> environments.Reset:
        super().reset(seed=seed)
        return np.array([name in sys.modules for name in self.watched], np.int8), {}

    def step(self, action: Any) -> environments.Step:
        return self.reset()[0], 0.0, False, False, {}


class BrokenOnceEnv(environments.CountingEnv):
    """Gives a first observation of NaN in the first environment that is made in this process."""

    made = 0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        type(self).made += 1
        self._broken = type(self).made == 2  # the first is the one that is probed

    def reset(self, *, seed: int | None = None, options: environments.Options = None) -> environments.Reset:
        observation, info = super().reset(seed=seed, options=options)
        return (np.full(2, np.nan, np.float32), info) if self._broken else (observation, info)


class ReportingEnv(environments.CountingEnv):
    """Returns whatever outcome it was told to."""

    def __init__(self, outcome: Any = None) -> None:
        super().__init__(min_length=1000, max_length=1000)
        self._outcome = outcome

    def step(self, action: Any) -> Any:
        observation, reward, *_ = super().step(action)
        outcomes: dict[str, Any] = {
            "reward_text": (observation, "much", False, False, {}),
            "reward_none": (observation, None, False, False, {}),
            "reward_array": (observation, np.zeros(3), False, False, {}),
            "four_values": (observation, reward, False, {}),
            "observation_none": (None, reward, False, False, {}),
            "float64": (observation.astype(np.float64), np.float32(reward), np.bool_(False), 0, {}),
            "list": (observation.tolist(), np.array(reward), False, False, {}),
        }
        return outcomes[self._outcome]
