"""Makes fragments with real lanes and a real actor, and reads their valid transitions back row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.config.sections import Config, EnvironmentConfig
from headrace.envs.factory import probe
from headrace.envs.lanes import Discard, Lanes
from headrace.envs.validation import check_fragment
from headrace.nets.actor import make_actor
from headrace.rl.algorithm import make_algorithm
from headrace.rollout import Rollout
from headrace.types import (
    BOOTSTRAP_OBSERVATION,
    FINAL_INDEX,
    FINAL_OBSERVATION,
    LANE_EPISODE,
    LANE_SEED,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    Fragment,
    PolicyVersion,
    SamplerIdentity,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One valid transition of an environment with a plain observation. ``life``: the lane and its seed."""

    life: tuple[int, int]
    observation: tuple[float, ...]
    reward: float
    terminated: bool
    truncated: bool
    following: tuple[float, ...]


class Maker:
    """Lanes, actor and rollout as a sampler has them."""

    def __init__(
        self,
        environment: EnvironmentConfig,
        *,
        fragment_length: int,
        num_lanes: int,
        policy: dict[str, Any] | None = None,
        max_consecutive_faults: int = 50,
    ) -> None:
        self.config = Config.model_validate(
            {
                "environment": {**environment.model_dump(), "lanes": num_lanes},
                "policy": {"hidden": [8], **(policy or {})},
                "run": {"stop": {"updates": 1}},
            }
        )
        self.spec = probe(self.config.environment)
        self.discards: list[Discard] = []
        lane_seeds, action_seeds = np.random.SeedSequence(5).spawn(2)
        self.lanes = Lanes(
            self.config.environment,
            self.config.validation,
            spec=self.spec,
            num_lanes=num_lanes,
            seed_sequence=lane_seeds,
            max_consecutive_faults=max_consecutive_faults,
            restart_backoff_s=0.0,
        )
        self.actor = make_actor(self.config, self.spec)
        self.actor.load(make_algorithm(self.config, self.spec).acting_parameters())
        self.rollout = Rollout(
            lanes=self.lanes,
            actor=self.actor,
            spec=self.spec,
            sampler=SamplerIdentity("sampler-0", 0),
            fragment_length=fragment_length,
            config_digest="digest",
            rng=np.random.default_rng(action_seeds),
            normalize_observation=self.config.policy.normalize_observation,
            on_discard=self.discards.append,
        )

    def make(self, count: int) -> list[Fragment]:
        """``count`` fragments, each of which passes the learner's check."""
        fragments = []
        for number in range(count):
            fragment = self.rollout.run(PolicyVersion(1, number))
            assert fragment is not None
            assert check_fragment(fragment, self.spec, self.config.validation) is None
            fragments.append(fragment)
        return fragments


def rows_of(fragment: Fragment) -> list[Row]:
    """All valid transitions, lane by lane, in the order of time."""
    columns = fragment.columns
    steps, lanes = columns[REWARD].shape
    valid = columns.get(VALID, np.ones((steps, lanes), bool))
    finals = {int(index): place for place, index in enumerate(columns[FINAL_INDEX])}
    rows = []
    for lane in range(lanes):
        for t in range(steps):
            if not valid[t, lane]:
                continue
            ended = t * lanes + lane in finals
            following = (
                columns[FINAL_OBSERVATION][finals[t * lanes + lane]]
                if ended
                else columns[OBSERVATION][t + 1, lane]
                if t + 1 < steps
                else columns[BOOTSTRAP_OBSERVATION][lane]
            )
            rows.append(
                Row(
                    life=(lane, int(columns[LANE_SEED][lane])),
                    observation=_plain(columns[OBSERVATION][t, lane]),
                    reward=float(columns[REWARD][t, lane]),
                    terminated=bool(columns[TERMINATED][t, lane]),
                    truncated=bool(columns[TRUNCATED][t, lane]),
                    following=_plain(following),
                )
            )
    return rows


def episode_at_start(fragment: Fragment, lane: int) -> int:
    """Ordinal of the lane's episode at the first step, as the provenance columns say."""
    return int(fragment.columns[LANE_EPISODE][lane])


def _plain(array: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in np.asarray(array).ravel())
