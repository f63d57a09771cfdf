"""Batches and specs for tests of what learns."""

from __future__ import annotations

from typing import Any

import environments
import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec, spec_of
from headrace.nets.actor import Actor
from headrace.rl.normalizer import RunningMoments, observation_prefix
from headrace.types import (
    ACTION,
    BEHAVIOR_LOG_PROB,
    BOOTSTRAP_OBSERVATION,
    BOOTSTRAP_VALUE,
    FINAL_INDEX,
    FINAL_OBSERVATION,
    FINAL_VALUE,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    VALUE,
    Array,
    Fragment,
    FragmentId,
    PolicyVersion,
    SamplerIdentity,
    as_columns,
)

torch.set_num_threads(1)  # the products here are tiny, and waiting threads would only spin


class IdentityEnv(gym.Env[Any, Any]):
    """Reward for repeating the observation: the smallest thing that can be learned. Ten steps an episode."""

    def __init__(self, *, continuous: bool = False) -> None:
        box = spaces.Box(-2, 2, (1,), np.float32)
        self.observation_space = self.action_space = box if continuous else spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps, self._shown = 0, self.observation_space.sample()
        return self._shown, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if isinstance(self.action_space, spaces.Discrete):
            reward = float(action == self._shown)
        else:
            reward = 1.0 - abs(float(action[0] - self._shown[0]))
        self._steps, self._shown = self._steps + 1, self.observation_space.sample()
        return self._shown, reward, self._steps >= 10, False, {}


def make_config(name: str = "ppo", /, **sections: dict[str, Any]) -> Config:
    """A configuration with the algorithm ``name``; keyword arguments are sections."""
    document: dict[str, Any] = {"environment": {"id": "CartPole-v1"}, **sections}
    document["algorithm"] = {"name": name, **sections.get("algorithm", {})}
    return Config.model_validate(document)


def make_spec(observation: gym.Space[Any], action: gym.Space[Any]) -> EnvironmentSpec:
    return EnvironmentSpec("test", spec_of(observation), spec_of(action))


def case_spec(kind: str) -> EnvironmentSpec:
    """The spaces of one kind of SpaceEnv."""
    return make_spec(*environments.SPACES[kind])


def sample_leaves(space: gym.Space[Any], rows: int, *, seed: int = 0) -> dict[str, Array]:
    """Random elements of a space, as leaves ``[rows, ...]``."""
    space.seed(seed)
    spec = spec_of(space)
    samples = [spec.flatten(space.sample()) for _ in range(rows)]
    return {
        leaf.path: np.stack([np.asarray(sample[leaf.path], leaf.dtype) for sample in samples])
        for leaf in spec.leaves
    }


def trajectory_columns(
    rng: np.random.Generator,
    *,
    num_steps: int,
    num_lanes: int,
    end_probability: float = 0.2,
    invalid: bool = False,
) -> dict[str, Array]:
    """Random rewards, values and ends ``[T, B]``; with ``invalid``, whole runs after an end are void."""
    shape = (num_steps, num_lanes)
    terminated = rng.random(shape) < end_probability
    truncated = rng.random(shape) < end_probability
    columns: dict[str, Array] = {}
    if invalid:
        valid = np.ones(shape, np.bool_)
        begins = np.concatenate([np.ones((1, num_lanes), np.bool_), (terminated | truncated)[:-1]])
        for step, lane in np.argwhere(begins & (rng.random(shape) < 0.5)):
            length = int(rng.integers(1, 4))
            valid[step : step + length, lane] = False
        # A valid step is never followed by a void one unless it ended its episode.
        followed_by_void = valid[:-1] & ~valid[1:]
        terminated[:-1] |= followed_by_void
        terminated &= valid
        truncated &= valid
        columns[VALID] = valid
    ends = np.flatnonzero(terminated | truncated).astype(np.int32)
    return columns | {
        REWARD: rng.standard_normal(shape).astype(np.float32),
        VALUE: rng.standard_normal(shape).astype(np.float32),
        TERMINATED: terminated,
        TRUNCATED: truncated,
        BOOTSTRAP_VALUE: rng.standard_normal(num_lanes).astype(np.float32),
        FINAL_INDEX: ends,
        FINAL_VALUE: rng.standard_normal(len(ends)).astype(np.float32),
    }


def make_fragment(columns: dict[str, Array], *, sequence: int = 0, sampler: str = "sampler-0") -> Fragment:
    valid = columns.get(VALID)
    transitions = columns[REWARD].size if valid is None else int(valid.sum())
    identity = SamplerIdentity(sampler, 0)
    return Fragment(
        FragmentId(identity, sequence), PolicyVersion(0, 0), "digest", columns, transitions, transitions
    )


def acted_fragment(
    actor: Actor,
    config: Config,
    observation_space: gym.Space[Any],
    *,
    num_steps: int = 8,
    num_lanes: int = 4,
    seed: int = 0,
    sequence: int = 0,
) -> Fragment:
    """A fragment of random observations that the actor has acted on, with ends and normalizer deltas."""
    rng = np.random.default_rng(seed)
    columns = trajectory_columns(rng, num_steps=num_steps, num_lanes=num_lanes)
    flat = sample_leaves(observation_space, num_steps * num_lanes, seed=seed)
    acted = actor.act(flat, rng)

    def time_major(array: Array) -> Array:
        return array.reshape(num_steps, num_lanes, *array.shape[1:])

    columns.update(as_columns(OBSERVATION, {path: time_major(leaf) for path, leaf in flat.items()}))
    columns.update(as_columns(ACTION, {path: time_major(leaf) for path, leaf in acted.action.items()}))
    ends = len(columns[FINAL_INDEX])
    for name, rows in ((BOOTSTRAP_OBSERVATION, num_lanes), (FINAL_OBSERVATION, ends)):
        columns.update(as_columns(name, {path: leaf[:rows] for path, leaf in flat.items()}))
    columns[BEHAVIOR_LOG_PROB] = time_major(acted.log_prob)
    columns[VALUE] = time_major(acted.value)
    if config.policy.normalize_observation:
        for path, leaf in flat.items():
            if leaf.dtype.kind == "f":
                columns.update(RunningMoments.of(leaf).columns(observation_prefix(path)))
    return make_fragment(columns, sequence=sequence)
