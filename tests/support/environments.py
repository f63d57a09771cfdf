"""Small Gymnasium environments, each of which holds one promise to the test.

They need gymnasium and numpy only, so that worker processes can import them as ``environments:Name``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Observation = npt.NDArray[np.float32]
Options = dict[str, Any] | None
Reset = tuple[Any, dict[str, Any]]
Step = tuple[Any, float, bool, bool, dict[str, Any]]


class CountingEnv(gym.Env[Any, Any]):
    """Observation ``[episode, t]``, reward ``t``: shows any transition that crosses an episode.

    ``end`` chooses how episodes end: ``terminated``, ``truncated``, ``both`` or ``mixed`` (drawn per
    episode). For every stored transition ``next_t == t + 1`` and the episode is unchanged, also at the end
    (the true final observation), and each (episode, t) that was produced appears at most once.
    """

    def __init__(self, min_length: int = 1, max_length: int = 40, end: str = "mixed") -> None:
        self.observation_space = spaces.Box(0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._lengths, self._end, self._episode = (min_length, max_length), end, -1

    def reset(self, *, seed: int | None = None, options: Options = None) -> Reset:
        super().reset(seed=seed)
        self._episode, self._t = self._episode + 1, 0
        self._length = int(self.np_random.integers(self._lengths[0], self._lengths[1] + 1))
        kinds = ("terminated", "truncated", "both")
        self._kind = kinds[self.np_random.integers(3)] if self._end == "mixed" else self._end
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        reward, self._t = float(self._t), self._t + 1
        over = self._t >= self._length
        return (
            self._observation(),
            reward,
            over and self._kind != "truncated",
            over and self._kind != "terminated",
            {},
        )

    def _observation(self) -> Observation:
        return np.array([self._episode, self._t], np.float32)


class EndlessEnv(gym.Env[Any, Any]):
    """Constant observation and reward 1, never ends by itself.

    With the sampler's own step cap the value of the only state must go to ``1 / (1 - gamma)``:
    a cap is a truncation and bootstraps. Treated as a termination the value comes out far lower.
    """

    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Options = None) -> Reset:
        super().reset(seed=seed)
        return np.ones(3, np.float32), {}

    def step(self, action: Any) -> Step:
        return np.ones(3, np.float32), 1.0, False, False, {}


class PoisonEnv(CountingEnv):
    """Now and then emits a bad value: ``nan_reward``, ``inf_reward``, ``nan_observation``,
    ``huge_reward`` (1e12), ``wrong_shape``, ``wrong_dtype`` or ``outside_space``.

    Nothing bad is trained on or stored; each refusal is counted by reason and can be traced to
    sampler, incarnation, environment, seed, episode and step; training goes on.
    """

    def __init__(self, kind: str = "nan_reward", probability: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_space = spaces.Box(0, 1e6, (2,), np.float32)
        self._poison, self._probability = kind, probability

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.np_random.random() >= self._probability:
            return observation, reward, terminated, truncated, info
        bad_reward = {"nan_reward": np.nan, "inf_reward": np.inf, "huge_reward": 1e12}
        bad_observation: dict[str, npt.NDArray[Any]] = {
            "nan_observation": np.full(2, np.nan, np.float32),
            "wrong_shape": np.zeros(3, np.float32),
            "wrong_dtype": np.array(["a", "b"], dtype=object),
            "outside_space": np.full(2, -5.0, np.float32),
        }
        return (
            bad_observation.get(self._poison, observation),
            bad_reward.get(self._poison, reward),
            terminated,
            truncated,
            info,
        )


class FaultyEnv(CountingEnv):
    """Fails as real simulators do: ``raise_step``, ``raise_reset``, ``hang`` (blocks in ``step``),
    ``exit`` (the process dies), ``sys_exit`` (it asks for that in Python's way), or ``raise_always``.

    The episode is discarded with its provenance and that environment alone is rebuilt; the others go on.
    A hang is noticed within the configured time. ``raise_always`` ends the sampler after K in a row, with
    the reason.
    """

    def __init__(self, kind: str = "raise_step", probability: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._fault, self._probability = kind, probability

    def reset(self, *, seed: int | None = None, options: Options = None) -> Reset:
        result = super().reset(seed=seed, options=options)
        if self._fault == "raise_reset" and self.np_random.random() < self._probability * 20:
            raise ConnectionError("simulator went away in reset")
        return result

    def step(self, action: Any) -> Step:
        hit = self._fault == "raise_always" or self.np_random.random() < self._probability
        if hit and self._fault in ("raise_step", "raise_always"):
            raise RuntimeError("simulator error in step")
        if hit and self._fault == "hang":
            time.sleep(3600)
        if hit and self._fault == "sys_exit":
            sys.exit(2)
        if hit and self._fault == "exit":
            os._exit(3)
        return super().step(action)


class SlowEnv(CountingEnv):
    """Waits ``step_s`` in each step, as an environment bound by input and output does.

    With the processor idle, n samplers must give close to n times the steps of one.
    """

    def __init__(self, step_s: float = 0.005, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._step_s = step_s

    def step(self, action: Any) -> Step:
        time.sleep(self._step_s)
        return super().step(action)


class HinderedEnv(SlowEnv):
    """Takes ``factor`` times as long in the process whose pid is in the file ``hindered``.

    The file may come, change and go while a run is going on.
    """

    def __init__(self, hindered: str, factor: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._hindered, self._factor = Path(hindered), factor

    def step(self, action: Any) -> Step:
        try:
            hindered = self._hindered.read_text("utf-8").strip() == str(os.getpid())
        except FileNotFoundError:
            hindered = False
        if hindered:
            time.sleep((self._factor - 1) * self._step_s)
        return super().step(action)


class LongTailEnv(CountingEnv):
    """Mostly short episodes, one in fifty of 20,000 steps.

    Memory must stay flat, rounds must not wait for the tail.
    """

    def reset(self, *, seed: int | None = None, options: Options = None) -> Reset:
        result = super().reset(seed=seed, options=options)
        if self.np_random.random() < 0.02:
            self._length = 20_000
        return result


class GrowingInfoEnv(CountingEnv):
    """``info`` grows with every step. It must not be kept."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._log: list[bytes] = []

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, _ = super().step(action)
        self._log = [*self._log[-2000:], bytes(256)]
        return observation, reward, terminated, truncated, {"history": list(self._log)}


SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "vector_discrete": (spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)),
    "vector_continuous": (spaces.Box(-1, 1, (4,), np.float64), spaces.Box(-2, 2, (2,), np.float32)),
    "image_discrete": (spaces.Box(0, 255, (84, 84, 4), np.uint8), spaces.Discrete(6)),
    "discrete_start": (spaces.Discrete(16, start=-3), spaces.Discrete(4, start=1)),
    "multi_discrete": (spaces.MultiDiscrete([3, 5, 2]), spaces.MultiDiscrete([3, 4])),
    "multi_binary": (spaces.MultiBinary(6), spaces.MultiBinary(3)),
    "dict": (
        spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(5)}),
        spaces.Discrete(2),
    ),
    "tuple": (
        spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))),
        spaces.Discrete(2),
    ),
    "nested": (
        spaces.Dict(
            {
                "image": spaces.Box(0, 255, (16, 16, 3), np.uint8),
                "deep": spaces.Tuple(
                    (spaces.MultiBinary(2), spaces.Dict({"x": spaces.Box(-1, 1, (1,), np.float32)}))
                ),
            }
        ),
        spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32))),
    ),
}


class SpaceEnv(gym.Env[Any, Any]):
    """Random observations of any named space in ``SPACES``.

    Every one is trained on, or refused at start in one clear sentence.
    """

    def __init__(self, kind: str = "nested", length: int = 20) -> None:
        self.observation_space, self.action_space = SPACES[kind]
        self._length = length

    def reset(self, *, seed: int | None = None, options: Options = None) -> Reset:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), f"action {action!r} is not in {self.action_space}"
        self._t += 1
        return self.observation_space.sample(), 1.0, self._t >= self._length, False, {}
