"""Acting: lanes plus an actor fill fragments. The one loop behind every sampler and the plain loop.

Time alignment: row ``t`` of a fragment holds the observation the policy saw, the action it took, and
the reward and end flags that this action brought. What comes after the last row is in
``bootstrap_observation``; what came after an ended episode is in ``final_observation``.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from headrace.envs.lanes import Discard, LaneStep
from headrace.envs.spec import EnvironmentSpec
from headrace.nets.actor import Actor
from headrace.rl.normalizer import RunningMoments
from headrace.types import (
    ACTION,
    ACTION_VALUE,
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
    NORMALIZER,
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


class LanesLike(Protocol):
    """What a rollout needs of its environments; :class:`headrace.envs.lanes.Lanes` is one."""

    lane_seed: Array
    lane_episode: Array
    lane_step: Array

    def reset(self) -> dict[str, Array]:
        """First observations, leaves ``[B, ...]``."""
        ...

    def step(self, actions: dict[str, Array]) -> LaneStep:
        """One step of every lane."""
        ...


@dataclass(slots=True)
class RolloutCounts:
    """Transitions of this incarnation: ``produced == sum(discarded) + sealed + open``."""

    produced: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    sealed: int = 0

    @property
    def open(self) -> int:
        """Transitions in the fragment that is being filled."""
        return self.produced - self.discarded.total() - self.sealed


class _OpenFragment:
    """The columns being filled: ``[T, B, ...]``, allocated anew per fragment (the last one is in flight)."""

    def __init__(self, num_steps: int, num_lanes: int, lanes: LanesLike) -> None:
        self.num_steps = num_steps
        self.num_lanes = num_lanes
        shape = (num_steps, num_lanes)
        self.observation: dict[str, Array] = {}
        self.action: dict[str, Array] = {}
        self.reward = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, np.bool_)
        self.truncated = np.zeros(shape, np.bool_)
        self.log_prob = np.zeros(shape, np.float32)
        self.value = np.zeros(shape, np.float32)
        self.action_value: Array | None = None
        self.valid = np.ones(shape, np.bool_)
        self.all_valid = True
        self.episode_begin = np.zeros(num_lanes, np.int64)  # row where the lane's episode begins here
        self.final_index: list[int] = []
        self.final_leaves: list[Mapping[str, Array]] = []
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.provenance: dict[str, Array] = {
            LANE_SEED: np.array(lanes.lane_seed, np.int64),
            LANE_EPISODE: np.array(lanes.lane_episode, np.int64),
            LANE_STEP: np.array(lanes.lane_step, np.int32),
        }

    def write(self, column: dict[str, Array], row: int, leaves: Mapping[str, Array]) -> None:
        """Copy one step's leaves ``[B, ...]`` into row ``row``, allocating on first use."""
        for leaf, array in leaves.items():
            target = column.get(leaf)
            if target is None:
                target = np.zeros((self.num_steps, *array.shape), array.dtype)
                column[leaf] = target
            target[row] = array

    def write_action_value(self, row: int, values: Array) -> None:
        """Copy the worth of one step's actions ``[B]`` into row ``row``, allocating on first use."""
        if self.action_value is None:
            self.action_value = np.zeros((self.num_steps, self.num_lanes), np.float32)
        self.action_value[row] = values

    def void(self, row: int, lane: int) -> int:
        """Void the lane's episode up to and with ``row``; returns how many earlier rows had been valid."""
        begin = int(self.episode_begin[lane])
        had = int(np.count_nonzero(self.valid[begin:row, lane]))
        self.valid[begin : row + 1, lane] = False
        self.all_valid = False
        self.episode_begin[lane] = row + 1
        return had


class Rollout:
    """Fills fragments with one actor over one set of lanes.

    Invariants: a fragment has exactly one policy version; ``counts`` balances after every step;
    nothing of a discarded episode in the open fragment stays valid.
    """

    def __init__(
        self,
        *,
        lanes: LanesLike,
        actor: Actor,
        spec: EnvironmentSpec,
        sampler: SamplerIdentity,
        fragment_length: int,
        config_digest: str,
        rng: np.random.Generator,
        normalize_observation: bool,
        on_discard: Callable[[Discard], None] = lambda discard: None,
        on_step: Callable[[float], None] = lambda seconds: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``on_discard`` is told of each voided episode.

        ``on_step`` is called after each vector step with the seconds that the environments took.
        """
        self._lanes = lanes
        self._actor = actor
        self._sampler = sampler
        self._length = fragment_length
        self._digest = config_digest
        self._rng = rng
        self._normalized = [
            leaf.path
            for leaf in spec.observation.leaves
            if normalize_observation and leaf.kind == "box" and np.dtype(leaf.dtype).kind == "f"
        ]
        self._on_discard = on_discard
        self._on_step = on_step
        self._clock = clock
        self._observation: dict[str, Array] | None = None
        self._sequence = 0
        self.counts = RolloutCounts()

    def run(
        self,
        version: PolicyVersion,
        *,
        permit: int = -1,
        steps: int = 0,
        stop: Callable[[], bool] = lambda: False,
    ) -> Fragment | None:
        """Fill one fragment with the parameters the actor holds now.

        After ``steps`` steps (0, or more than fit: all that fit) it is sealed; the rows that were not reached
        are invalid. ``stop`` is asked before every step; once true, the fragment is sealed as it is, or None
        is returned if it holds nothing.
        """
        if self._observation is None:
            self._observation = self._lanes.reset()
        observation = self._observation
        num_lanes = next(iter(observation.values())).shape[0]
        fragment = _OpenFragment(self._length, num_lanes, self._lanes)
        wanted = min(steps or self._length, self._length)
        began, rows = self._clock(), 0
        while rows < wanted and not stop():
            observation = self._step(fragment, rows, observation)
            rows += 1
        self._observation = observation
        if rows < wanted and not np.any(fragment.valid[:rows]):
            return None
        if rows < self._length:
            self._cut(fragment, rows, observation)
        sealed = self._seal(fragment, observation, version, permit)
        seconds = self._clock() - began
        return replace(sealed, steps_per_s=rows / seconds if seconds > 0 else 0.0)

    def _step(self, fragment: _OpenFragment, row: int, observation: dict[str, Array]) -> dict[str, Array]:
        fragment.write(fragment.observation, row, observation)
        acted = self._actor.act(observation, self._rng)
        fragment.write(fragment.action, row, acted.action)
        fragment.log_prob[row] = acted.log_prob
        fragment.value[row] = acted.value
        if acted.action_value is not None:
            fragment.write_action_value(row, acted.action_value)
        began = self._clock()
        step = self._lanes.step(acted.environment_action)
        seconds = self._clock() - began
        fragment.reward[row] = step.reward
        fragment.terminated[row] = step.terminated
        fragment.truncated[row] = step.truncated
        self.counts.produced += fragment.num_lanes
        if step.valid is not None:
            self._mark_invalid(fragment, row, step.valid)
        for lane, leaves in step.finals:
            fragment.final_index.append(row * fragment.num_lanes + lane)
            fragment.final_leaves.append({leaf: np.array(array) for leaf, array in leaves.items()})
            fragment.episode_begin[lane] = row + 1
        for episode in step.episodes:
            fragment.returns.append(episode.return_)
            fragment.lengths.append(episode.length)
        for discard in step.discards:
            self._discard(fragment, row, discard)
        self._on_step(seconds)
        return step.observation

    def _mark_invalid(self, fragment: _OpenFragment, row: int, valid: Array) -> None:
        """Rows that are no transitions at all: reset steps, and steps of a lane that is being rebuilt."""
        invalid = np.flatnonzero(~valid)
        if invalid.size:
            fragment.valid[row, invalid] = False
            fragment.all_valid = False
            self.counts.produced -= int(invalid.size)
            # Whatever comes next on these lanes is a new episode, unless a discard below says more.
            for lane in invalid:
                if not np.any(fragment.valid[fragment.episode_begin[lane] : row, lane]):
                    fragment.episode_begin[lane] = row + 1

    def _discard(self, fragment: _OpenFragment, row: int, discard: Discard) -> None:
        self._on_discard(discard)
        if not discard.produced and fragment.valid[row, discard.lane]:
            return  # an episode that failed to begin; the lane is in its next one already
        if discard.produced and not fragment.valid[row, discard.lane]:
            self.counts.produced += 1
        voided = fragment.void(row, discard.lane) + int(discard.produced)
        for column in (fragment.reward, fragment.log_prob, fragment.value, fragment.action_value):
            if column is not None:
                column[row, discard.lane] = 0.0
        fragment.terminated[row, discard.lane] = fragment.truncated[row, discard.lane] = False
        if voided:
            self.counts.discarded[discard.reason] += voided

    def _cut(self, fragment: _OpenFragment, rows: int, observation: dict[str, Array]) -> None:
        """End the fragment early: the last row bootstraps from what came after it, the rest is invalid."""
        fragment.valid[rows:] = False
        fragment.all_valid = False
        last = rows - 1
        ended = fragment.terminated[last] | fragment.truncated[last]
        for lane in np.flatnonzero(fragment.valid[last] & ~ended):
            fragment.truncated[last, lane] = True
            fragment.final_index.append(last * fragment.num_lanes + int(lane))
            fragment.final_leaves.append({leaf: np.array(array[lane]) for leaf, array in observation.items()})

    def _seal(
        self, fragment: _OpenFragment, observation: dict[str, Array], version: PolicyVersion, permit: int
    ) -> Fragment:
        columns: dict[str, Array] = {
            **as_columns(OBSERVATION, fragment.observation),
            **as_columns(ACTION, fragment.action),
            REWARD: fragment.reward,
            TERMINATED: fragment.terminated,
            TRUNCATED: fragment.truncated,
            BEHAVIOR_LOG_PROB: fragment.log_prob,
            VALUE: fragment.value,
            **fragment.provenance,
            EPISODE_RETURN: np.array(fragment.returns, np.float64),
            EPISODE_LENGTH: np.array(fragment.lengths, np.int32),
            **self._ends(fragment, observation),
            **self._normalizer_delta(fragment),
        }
        if fragment.action_value is not None:
            columns[ACTION_VALUE] = fragment.action_value
        if not fragment.all_valid:
            # A refused value may sit in the observation of a voided step; it must not cross the wire.
            for column in fragment.observation.values():
                column[~fragment.valid] = 0
            columns[VALID] = fragment.valid
        transitions = int(np.count_nonzero(fragment.valid))
        self.counts.sealed += transitions
        sealed = Fragment(
            id=FragmentId(self._sampler, self._sequence),
            policy_version=version,
            config_digest=self._digest,
            columns=columns,
            num_transitions=transitions,
            produced_through=self.counts.sealed,
            permit=permit,
        )
        self._sequence += 1
        return sealed

    def _ends(self, fragment: _OpenFragment, observation: dict[str, Array]) -> dict[str, Array]:
        """Final and bootstrap observations with the behavior policy's values of them, in one pass."""
        order = np.argsort(np.array(fragment.final_index, np.int64), kind="stable")
        finals = {
            leaf: np.array([fragment.final_leaves[i][leaf] for i in order], array.dtype).reshape(
                len(order), *array.shape[1:]
            )
            for leaf, array in observation.items()
        }
        both = {leaf: np.concatenate([finals[leaf], array]) for leaf, array in observation.items()}
        values = self._actor.value(both).astype(np.float32)
        num_finals = len(order)
        return {
            FINAL_INDEX: np.array(fragment.final_index, np.int32)[order],
            **as_columns(FINAL_OBSERVATION, finals),
            FINAL_VALUE: values[:num_finals].copy(),
            **as_columns(BOOTSTRAP_OBSERVATION, {leaf: array.copy() for leaf, array in observation.items()}),
            BOOTSTRAP_VALUE: values[num_finals:].copy(),
        }

    def _normalizer_delta(self, fragment: _OpenFragment) -> dict[str, Array]:
        """What this fragment adds to the observation normalizer: count, mean and M2 in float64."""
        columns: dict[str, Array] = {}
        for leaf in self._normalized:
            rows = fragment.observation[leaf][fragment.valid]
            moments = RunningMoments.of(rows)
            prefix = f"{NORMALIZER}/{leaf}"
            columns[f"{prefix}/count"] = np.array(moments.count, np.float64)
            columns[f"{prefix}/mean"] = moments.mean
            columns[f"{prefix}/m2"] = moments.m2
        return columns
