"""What the transport benchmark sends: fragments as samplers make them, small or about 1 MiB."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec, spec_of
from headrace.types import (
    ACTION,
    BEHAVIOR_LOG_PROB,
    BOOTSTRAP_OBSERVATION,
    BOOTSTRAP_VALUE,
    EPISODE_LENGTH,
    EPISODE_RETURN,
    FINAL_INDEX,
    FINAL_OBSERVATION,
    FINAL_VALUE,
    LANE_EPISODE,
    LANE_SEED,
    LANE_STEP,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALUE,
    Fragment,
    FragmentId,
    PolicyVersion,
    SamplerIdentity,
)

DIGEST = "0123456789abcdef"
LANES = 32
POOL = 8  # different fragments, sent in turn, so that their memory is not always the same


@dataclass(frozen=True, slots=True)
class Workload:
    """A size of fragment. ``name`` is also the receiver's role."""

    name: str
    num_steps: int
    width: int

    @classmethod
    def named(cls, name: str) -> Workload:
        """One of WORKLOADS."""
        return next(workload for workload in WORKLOADS if workload.name == name)


WORKLOADS = (
    Workload("small", 16, 4),  # 20 KB
    Workload("large", 64, 118),  # just under 1 MiB with its header: one message
    Workload("huge", 256, 118),  # 4 MiB: four messages, or one descriptor
)


def make_spec(workload: Workload) -> EnvironmentSpec:
    """Spaces of the workload: an unbounded box and two actions."""
    box = spaces.Box(-np.inf, np.inf, (workload.width,), np.float32)
    return EnvironmentSpec("Bench-v0", spec_of(box), spec_of(spaces.Discrete(2)))


def make_config(workload: Workload) -> Config:
    """A run that takes updates of eight fragments and never drops one."""
    transitions = workload.num_steps * LANES
    return Config.model_validate(
        {
            "environment": {"id": "Bench-v0", "lanes": LANES},
            "sampler": {"fragment_length": workload.num_steps},
            "algorithm": {"name": "a2c", "batch_steps": 8 * transitions},
            "stream": {"capacity_bytes": 2**27},
            "sync": {"lag_control": "drop", "max_policy_lag": 10**12},
        }
    )


def make_pool(workload: Workload) -> list[Fragment]:
    """Fragments whose numbers of ended episodes differ, as those of real samplers do."""
    rng = np.random.default_rng(0)
    return [_make_fragment(workload, rng, ended) for ended in range(POOL)]


def renumbered(fragment: Fragment, sequence: int) -> Fragment:
    """The same arrays under the next number."""
    produced = fragment.num_transitions * (sequence + 1)
    return replace(fragment, id=FragmentId(fragment.id.sampler, sequence), produced_through=produced)


def _make_fragment(workload: Workload, rng: np.random.Generator, ended: int) -> Fragment:
    steps, lanes, width = workload.num_steps, LANES, workload.width

    def noise(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    terminated = np.zeros((steps, lanes), np.bool_)
    places = np.sort(rng.choice(steps * lanes, ended, replace=False)).astype(np.int32)
    terminated.reshape(-1)[places] = True
    columns = {
        OBSERVATION: noise(steps, lanes, width),
        ACTION: rng.integers(0, 2, (steps, lanes)),
        REWARD: noise(steps, lanes),
        TERMINATED: terminated,
        TRUNCATED: np.zeros((steps, lanes), np.bool_),
        BEHAVIOR_LOG_PROB: noise(steps, lanes),
        VALUE: noise(steps, lanes),
        BOOTSTRAP_OBSERVATION: noise(lanes, width),
        BOOTSTRAP_VALUE: noise(lanes),
        FINAL_INDEX: places,
        FINAL_OBSERVATION: noise(ended, width),
        FINAL_VALUE: noise(ended),
        LANE_SEED: np.arange(lanes),
        LANE_EPISODE: np.arange(lanes),
        LANE_STEP: np.zeros(lanes, np.int32),
        EPISODE_RETURN: np.ones(ended),
        EPISODE_LENGTH: np.ones(ended, np.int32),
    }
    sampler = SamplerIdentity("bench", 0)
    transitions = steps * lanes
    return Fragment(FragmentId(sampler, 0), PolicyVersion(1, 0), DIGEST, columns, transitions, transitions)
