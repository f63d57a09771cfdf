"""Drives lanes in tests and writes down every transition they give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.config.sections import EnvironmentConfig, ValidationConfig
from headrace.envs.factory import probe
from headrace.envs.lanes import Discard, EpisodeEnd, Lanes, LaneStep
from headrace.envs.spec import EnvironmentSpec

Array = npt.NDArray[Any]


@dataclass
class Transition:
    lane: int
    row: int
    observation: dict[str, Array]
    reward: float
    terminated: bool
    truncated: bool
    next_observation: dict[str, Array]


@dataclass
class Log:
    """``voided`` are transitions that were valid rows of an episode that was discarded later."""

    transitions: list[Transition] = field(default_factory=list)
    voided: list[Transition] = field(default_factory=list)
    episodes: list[EpisodeEnd] = field(default_factory=list)
    discards: list[tuple[int, Discard]] = field(default_factory=list)
    valid: list[Array] = field(default_factory=list)


def make_lanes(config: EnvironmentConfig, *, num_lanes: int, seed: int = 1, **arguments: Any) -> Lanes:
    arguments.setdefault("restart_backoff_s", 0.0)
    arguments.setdefault("max_consecutive_faults", 50)
    arguments.setdefault("validation", ValidationConfig())
    spawn_key = arguments.pop("spawn_key", (0, 0))
    return Lanes(
        config,
        spec=probe(config),
        num_lanes=num_lanes,
        seed_sequence=np.random.SeedSequence(seed, spawn_key=spawn_key),
        **arguments,
    )


def actions_of(spec: EnvironmentSpec, num_lanes: int) -> dict[str, Array]:
    """Some action for every lane, inside its space."""
    actions = {}
    for leaf in spec.action.leaves:
        low, _ = leaf.bounds()
        actions[leaf.path] = np.broadcast_to(low, (num_lanes, *leaf.shape)).astype(leaf.dtype)
    return actions


def steps_of(lanes: Lanes, config: EnvironmentConfig, steps: int) -> Iterator[LaneStep]:
    actions = actions_of(probe(config), lanes.num_lanes)
    for _ in range(steps):
        yield lanes.step(actions)


def drive(lanes: Lanes, config: EnvironmentConfig, steps: int) -> Log:
    """Reset, take ``steps`` steps and close; what is in ``transitions`` may be trained on."""
    log = Log()
    try:
        observation = _copy(lanes.reset())
        open_: dict[int, list[Transition]] = {lane: [] for lane in range(lanes.num_lanes)}
        for row, step in enumerate(steps_of(lanes, config, steps)):
            valid = np.ones(lanes.num_lanes, bool) if step.valid is None else step.valid.copy()
            finals = dict(step.finals)
            after = _copy(step.observation)
            for discard in step.discards:
                log.discards.append((row, discard))
                log.voided += open_[discard.lane]
                open_[discard.lane] = []
            for lane in np.flatnonzero(valid).tolist():
                following = finals.get(lane) or {path: leaf[lane] for path, leaf in after.items()}
                open_[lane].append(
                    Transition(
                        lane,
                        row,
                        {path: leaf[lane] for path, leaf in observation.items()},
                        float(step.reward[lane]),
                        bool(step.terminated[lane]),
                        bool(step.truncated[lane]),
                        following,
                    )
                )
                if lane in finals:
                    log.transitions += open_[lane]
                    open_[lane] = []
            assert set(finals) == set(np.flatnonzero(step.terminated | step.truncated).tolist())
            assert not np.any((step.terminated | step.truncated) & ~valid)
            log.episodes += step.episodes
            log.valid.append(valid)
            observation = after
        for left in open_.values():
            log.transitions += left
    finally:
        lanes.close()
    return log


def _copy(leaves: dict[str, Array]) -> dict[str, Array]:
    return {path: leaf.copy() for path, leaf in leaves.items()}
