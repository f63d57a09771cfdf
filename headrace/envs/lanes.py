"""Lanes: B environments stepped together, whose every number has been checked.

Time alignment: ``step(actions)`` returns what the actions brought (reward and end flags) and the
observation to act on next. Where an episode ended, that is already the first one of the next episode;
the true last observation is in ``finals``. Lanes never fail for one environment: its episode is
discarded, the row is marked invalid, and the lane comes back when its environment has been replaced.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from headrace.config.sections import EnvironmentConfig, ValidationConfig
from headrace.envs.backend import Backend, LaneArrays, LaneFault, Report
from headrace.envs.bounds import NON_FINITE, OUT_OF_RANGE, LeafBounds
from headrace.envs.spec import EnvironmentSpec
from headrace.errors import EnvironmentFaultError
from headrace.types import Array

End = Literal["terminated", "truncated", "capped"]
_WAIT_S = 0.05
_MAX_BACKOFF_S = 60.0


class EpisodeEnd(NamedTuple):
    """A whole episode: undiscounted return, length in steps, and how it ended."""

    lane: int
    return_: float
    length: int
    end: End


@dataclass(frozen=True, slots=True)
class Discard:
    """Voids the episode that the lane is in at this row, with where it came from.

    ``episode`` counts the episodes since the environment was seeded with ``seed``, from 0, ``step`` the
    steps before the bad one. ``produced`` is True if the row's transition took place (the environment was
    stepped and answered).
    """

    lane: int
    reason: str
    detail: str
    seed: int
    episode: int
    step: int
    produced: bool


@dataclass(slots=True)
class LaneStep:
    """One step of all lanes. Its arrays are reused by the next step: copy what is to be kept.

    ``valid`` is None if every row is a transition. ``terminated`` and ``truncated`` exclude each other.
    """

    observation: dict[str, Array]  # [B, ...]
    reward: Array  # [B] float64, as the environment gave it
    terminated: Array  # [B] bool
    truncated: Array  # [B] bool
    valid: Array | None  # [B] bool
    finals: list[tuple[int, dict[str, Array]]] = field(default_factory=list)
    episodes: list[EpisodeEnd] = field(default_factory=list)
    discards: list[Discard] = field(default_factory=list)


class Lanes:
    """B environments behind one backend, with episodes, seeds, validation and repair.

    Invariants: an observation that is handed out has passed validation; a lane is either live (it has a
    checked observation to act on) or away (its row is invalid); every fault is counted in ``restarts``
    and reported as exactly one Discard. Not thread-safe, but ``heartbeat`` may be read by any thread.
    """

    def __init__(
        self,
        environment: EnvironmentConfig,
        validation: ValidationConfig,
        *,
        spec: EnvironmentSpec,
        num_lanes: int,
        seed_sequence: np.random.SeedSequence,
        max_consecutive_faults: int = 5,
        restart_backoff_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``seed_sequence`` is this sampler incarnation's own; lanes and rebuilds take children of it."""
        self.num_lanes = num_lanes
        self.lane_episode = np.zeros(num_lanes, np.int64)
        self.lane_step = np.zeros(num_lanes, np.int32)
        self.restarts: Counter[str] = Counter()
        self._seeds = seed_sequence
        self._cap = environment.max_episode_steps
        self._max_faults = max_consecutive_faults
        self._backoff_s = restart_backoff_s
        self._clock = clock
        self._bounds = [
            (leaf.path, LeafBounds(leaf, validation, inside_space=validation.check_space))
            for leaf in spec.observation.leaves
        ]
        self._bounds = [(path, bounds) for path, bounds in self._bounds if not bounds.unchecked]
        self._reward_limit = min(validation.reward_max_abs, float(np.finfo(np.float32).max))
        self._reward_limit_squared = self._reward_limit**2
        self._filler = spec.observation.neutral()

        self._backend = make_backend(environment, spec, num_lanes)
        self._arrays = self._backend.arrays
        self.lane_seed = self._backend.seeds
        self._flagged: list[int] = []  # lanes whose end flags are set
        self._returns = np.zeros(num_lanes, np.float64)

        self._live = np.zeros(num_lanes, np.bool_)
        self._num_live = 0
        self._faults_in_row = [0] * num_lanes
        self._builds = [0] * num_lanes
        self._due: dict[int, float] = {}  # away lanes whose environment is to be rebuilt, and when
        self._owed: list[Discard] = []  # of episodes that failed to begin: they void the next row
        self._started = False
        self._seen: tuple[tuple[int, int] | None, float] = (None, 0.0)

    @property
    def heartbeat(self) -> float | None:
        """When the running step or reset of an environment in this process began; None while idle.

        Found by looking, so it is late by up to the time since the last look. None for backends that
        watch over their environments themselves.
        """
        progress = self._backend.progress()
        if progress is None:
            return None
        if progress != self._seen[0]:
            self._seen = (progress, self._clock())
        return self._seen[1]

    def reset(self) -> dict[str, Array]:
        """Begin an episode in every lane and return the observations ``[B, ...]`` to act on.

        Lanes that fail to begin hold a filler until they are repaired; their discards come with the
        next step. The first call builds and seeds the environments.
        """
        lanes = range(self.num_lanes)
        if not self._started:
            self._started = True
            self._fill(lanes)
            report = self._backend.start(self._new_seeds(lanes))
            self._take_begun(report.began, report.faults)
        else:
            live = [int(lane) for lane in np.flatnonzero(self._live)]
            self._end_episodes(live)
            self._begin(live)
        return self._arrays.observation

    def step(self, actions: dict[str, Array]) -> LaneStep:
        """Step every live lane with its row of ``actions`` (leaves ``[B, ...]``).

        Raises:
            EnvironmentFaultError: A lane failed ``max_consecutive_faults`` times with no finished
                episode between.
        """
        arrays, discards = self._arrays, self._owed
        self._owed = []
        for lane in self._flagged:
            arrays.terminated[lane] = arrays.truncated[lane] = False
        valid: Array | None = None
        if self._num_live == self.num_lanes:
            report = self._backend.step(actions, None)
        else:
            valid = self._live.copy()
            arrays.reward[~valid] = 0.0
            live = np.flatnonzero(valid).tolist()
            report = self._backend.step(actions, live) if live else self._backend.wait(_WAIT_S)
        if report.faults or not self._all_good():
            valid = self._live.copy() if valid is None else valid
            discards += self._refuse(report, valid)
        result = LaneStep(
            arrays.observation, arrays.reward, arrays.terminated, arrays.truncated, valid, [], [], discards
        )
        self._returns += arrays.reward
        self.lane_step += 1 if valid is None else valid
        ended = report.ended if self._cap is None else self._capped(report.ended, self._cap)
        self._flagged = ended
        if ended:
            self._end(ended, result)
        if report.began:
            self._take_begun(report.began, [])
        if self._due:
            self._rebuild_due()
        return result

    def close(self) -> None:
        """Close every environment and end every worker."""
        self._backend.close()

    # -- one step's bookkeeping

    def _all_good(self) -> bool:
        """True if every observation and reward is acceptable; may be False for rewards near the limit."""
        observation, reward = self._arrays.observation, self._arrays.reward
        for path, bounds in self._bounds:
            if not bounds.accepts(observation[path]):
                return False
        # The sum of squares bounds the largest magnitude, and is not finite if any reward isn't.
        return bool(np.dot(reward, reward) <= self._reward_limit_squared)

    def _capped(self, ended: list[int], cap: int) -> list[int]:
        """``ended`` and the lanes that have reached the step cap."""
        at_cap = self.lane_step >= cap
        if not np.logical_or.reduce(at_cap):
            return ended
        at_cap[ended] = True
        capped: list[int] = np.flatnonzero(at_cap).tolist()
        return capped

    def _end(self, lanes: list[int], result: LaneStep) -> None:
        """End the episodes of ``lanes`` and begin the next ones."""
        arrays = self._arrays
        terminated, truncated = arrays.terminated, arrays.truncated
        leaves = arrays.observation.items()
        for lane in lanes:
            end: End = "terminated" if terminated[lane] else "truncated" if truncated[lane] else "capped"
            truncated[lane] = end != "terminated"
            result.finals.append((lane, {path: leaf[lane].copy() for path, leaf in leaves}))
            result.episodes.append(
                EpisodeEnd(lane, float(self._returns[lane]), int(self.lane_step[lane]), end)
            )
            self._faults_in_row[lane] = 0
        self._end_episodes(lanes)
        self._begin(lanes)

    def _end_episodes(self, lanes: Sequence[int]) -> None:
        for lane in lanes:
            self.lane_episode[lane] += 1
            self.lane_step[lane] = 0
            self._returns[lane] = 0.0

    def _begin(self, lanes: Sequence[int]) -> None:
        """Begin new episodes; lanes whose first observation isn't there yet are away."""
        if not lanes:
            return
        report = self._backend.begin(lanes)
        if len(report.began) < len(lanes):
            begun = set(report.began)
            self._leave([lane for lane in lanes if lane not in begun])
        self._take_begun(report.began, report.faults)

    def _take_begun(self, began: Sequence[int], faults: list[LaneFault]) -> None:
        """Make lanes live whose first observation is acceptable; faults void the episode to be."""
        for lane in began:
            bad = self._why_not(lane)
            if bad is None:
                self._num_live += not self._live[lane]
                self._live[lane] = True
            else:
                faults.append(LaneFault(lane, *bad))
        for fault in faults:
            self._owed.append(self._discard(fault, produced=False))
            self._end_episodes([fault.lane])
            self._send_away(fault)

    # -- failures

    def _refuse(self, report: Report, valid: Array) -> list[Discard]:
        """Void the episodes of lanes that failed in this step, and begin or repair these lanes."""
        discards: list[Discard] = []
        failed = {fault.lane for fault in report.faults}
        faults = [(fault, not fault.reason.startswith("fault_")) for fault in report.faults]
        for lane in np.flatnonzero(valid).tolist():
            bad = None if lane in failed else self._why_not_step(lane)
            if bad is not None:
                faults.append((LaneFault(lane, *bad), True))
        restart: list[int] = []
        for fault, produced in faults:
            lane = fault.lane
            valid[lane] = False
            self._arrays.reward[lane] = 0.0
            if lane in report.ended:
                report.ended.remove(lane)
                self._arrays.terminated[lane] = self._arrays.truncated[lane] = False
            discards.append(self._discard(fault, produced=produced))
            self._end_episodes([lane])
            # A first bad value: the environment still works, so a new episode is enough.
            if produced and self._faults_in_row[lane] == 0:
                self._count(fault)
                restart.append(lane)
            else:
                self._send_away(fault)
        self._begin(restart)
        return discards

    def _why_not_step(self, lane: int) -> tuple[str, str] | None:
        reward = float(self._arrays.reward[lane])
        if not abs(reward) <= self._reward_limit:
            finite = np.isfinite(reward)
            detail = f"reward is {reward!r}" + (", beyond validation.reward_max_abs" if finite else "")
            return (OUT_OF_RANGE if finite else NON_FINITE), detail
        return self._why_not(lane)

    def _why_not(self, lane: int) -> tuple[str, str] | None:
        for path, bounds in self._bounds:
            row = self._arrays.observation[path][lane : lane + 1]
            if not bounds.accepts_row(row):
                return bounds.why_not(row)
        return None

    def _discard(self, fault: LaneFault, *, produced: bool) -> Discard:
        lane = fault.lane
        return Discard(
            lane=lane,
            reason=fault.reason,
            detail=fault.detail,
            seed=int(self.lane_seed[lane]),
            episode=int(self.lane_episode[lane]),
            step=int(self.lane_step[lane]),
            produced=produced,
        )

    def _count(self, fault: LaneFault) -> None:
        """Count a fault; EnvironmentFaultError if it is the K-th in a row."""
        self.restarts[fault.reason] += 1
        if not fault.culprit:
            return
        self._faults_in_row[fault.lane] += 1
        if self._faults_in_row[fault.lane] >= self._max_faults:
            raise EnvironmentFaultError(
                f"lane {fault.lane} failed {self._faults_in_row[fault.lane]} times in a row without a "
                f"finished episode between (seed {int(self.lane_seed[fault.lane])}); "
                f"the last was {fault.reason}: {fault.detail}"
            )

    def _send_away(self, fault: LaneFault) -> None:
        """Count a fault and plan when its environment is rebuilt: later after each fault in a row."""
        self._count(fault)
        self._leave([fault.lane])
        pause = 0.0
        if self._faults_in_row[fault.lane]:
            pause = min(self._backoff_s * 2.0 ** (self._faults_in_row[fault.lane] - 1), _MAX_BACKOFF_S)
        self._due[fault.lane] = self._clock() + pause

    def _leave(self, lanes: Sequence[int]) -> None:
        for lane in lanes:
            self._num_live -= bool(self._live[lane])
            self._live[lane] = False
        self._fill(lanes)

    def _fill(self, lanes: Sequence[int]) -> None:
        """Give lanes without an observation one that is harmless to act on."""
        for path, value in self._filler.items():
            for lane in lanes:
                self._arrays.observation[path][lane] = value

    def _rebuild_due(self) -> None:
        now = self._clock()
        owed = {discard.lane for discard in self._owed}  # their next row is void, so they stay away for it
        due = [lane for lane, at in self._due.items() if at <= now and lane not in owed]
        if due:
            for lane in due:
                del self._due[lane]
            report = self._backend.rebuild(due, self._new_seeds(due))
            self._take_begun(report.began, report.faults)

    # -- seeds

    def _new_seeds(self, lanes: Sequence[int]) -> list[int]:
        """Seeds of the lanes' next builds: distinct by run, sampler, incarnation, lane and build."""
        seeds = [self._seed_of(lane, self._builds[lane]) for lane in lanes]
        for lane in lanes:
            self._builds[lane] += 1
            self.lane_episode[lane] = 0
        return seeds

    def _seed_of(self, lane: int, build: int) -> int:
        key = (*self._seeds.spawn_key, lane, build)
        state = np.random.SeedSequence(entropy=self._seeds.entropy, spawn_key=key).generate_state(1)
        return int(state[0]) & 0x7FFFFFFF  # simulators often take no more than 31 bits


def make_backend(environment: EnvironmentConfig, spec: EnvironmentSpec, num_lanes: int) -> Backend:
    """The backend that ``environment.vectorization`` names."""
    if environment.vectorization == "sync":
        from headrace.envs.sync import SyncBackend

        return SyncBackend(environment, spec, LaneArrays.allocate(spec, num_lanes))
    if environment.vectorization == "async":
        from headrace.envs.workers import AsyncBackend

        return AsyncBackend(environment, spec, num_lanes)
    from headrace.envs.native import NativeBackend

    return NativeBackend(environment, spec, num_lanes)
