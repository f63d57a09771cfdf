"""Vectors that step all their environments themselves: Gymnasium's vector entry points, and EnvPool.

They reset ended lanes by themselves, in one of two ways, and one adapter makes both look like the rest:
*same step*: the vector returns the first observation of the next episode and keeps the true last one in
``info["final_obs"]``. *Next step*: it returns the true last observation, and the step after that resets;
that row is no transition, so the lane is away for it.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from headrace.config.sections import EnvironmentConfig
from headrace.envs.backend import (
    ENVIRONMENT_FAULTS,
    FAULT_RAISE_RESET,
    FAULT_RAISE_STEP,
    LaneArrays,
    LaneFault,
    Report,
    describe_fault,
)
from headrace.envs.factory import refuse, resolve
from headrace.envs.spec import EnvironmentSpec
from headrace.envs.writing import Misfit, coerce
from headrace.errors import ConfigurationError
from headrace.types import Array

Vector = Any  # gymnasium.vector.VectorEnv, or EnvPool, which has the same methods


def make_vector(config: EnvironmentConfig, num_lanes: int, *, seed: int) -> Vector:
    """The environment's own vector of ``num_lanes``. EnvPool takes its seed here, others in ``reset``.

    Raises:
        ConfigurationError: There is none, or it doesn't take these settings.
    """
    if config.wrappers:
        raise ConfigurationError(
            [f"environment.wrappers: can't be used with vectorization {config.vectorization}."]
        )
    if config.vectorization == "envpool":
        from headrace.envs.envpool import make_envpool

        return make_envpool(config, num_lanes, seed=seed)
    recipe = resolve(config)
    if recipe.registered is None:
        assert recipe.factory is not None
        target, kwargs, limit = recipe.factory, dict(config.kwargs), None
    else:
        target, kwargs = (
            _vector_entry(config, recipe.registered),
            {**recipe.registered.kwargs, **config.kwargs},
        )
        limit = recipe.registered.max_episode_steps
    caps = [cap for cap in (limit, config.max_episode_steps) if cap is not None]
    takes_cap = _takes(target, "max_episode_steps")
    if caps and takes_cap:
        kwargs["max_episode_steps"] = min(caps)
    try:
        vector = target(num_envs=num_lanes, **kwargs)
    except ENVIRONMENT_FAULTS as error:
        raise refuse(config, target, error) from error
    if not isinstance(vector, gym.vector.VectorEnv):
        raise ConfigurationError(
            [f"environment.id: {config.id} gives a {type(vector).__name__}, not a gymnasium VectorEnv."]
        )
    if config.max_episode_steps is not None and not takes_cap and not resets_single_lanes(config, vector):
        raise ConfigurationError(
            [f"environment.max_episode_steps: the vector of {config.id} can't cut an episode short."]
        )
    return vector


def resets_single_lanes(config: EnvironmentConfig, vector: Vector) -> bool:
    """True if the vector can be told to reset some of its lanes."""
    return (
        config.vectorization == "envpool"
        or isinstance(vector, SyncVectorEnv | AsyncVectorEnv)
        or autoreset_of(config, vector) is AutoresetMode.DISABLED
    )


def autoreset_of(config: EnvironmentConfig, vector: Vector) -> AutoresetMode:
    """How the vector resets ended lanes: as configured, else as its metadata says."""
    if config.autoreset != "auto":
        return AutoresetMode.SAME_STEP if config.autoreset == "same_step" else AutoresetMode.NEXT_STEP
    mode = vector.metadata.get("autoreset_mode")
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError as error:
        raise ConfigurationError(
            [
                f"environment.autoreset: {config.id} doesn't say how it resets ended lanes; "
                "set same_step or next_step."
            ]
        ) from error


def _vector_entry(config: EnvironmentConfig, registered: EnvSpec) -> Callable[..., Any]:
    entry = registered.vector_entry_point
    if entry is None:
        raise ConfigurationError(
            [f"environment.vectorization: {config.id} has no vector of its own; use sync or async."]
        )
    try:
        return load_env_creator(entry) if isinstance(entry, str) else entry
    except ENVIRONMENT_FAULTS as error:
        raise refuse(config, make_vector, error) from error


def _takes(target: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(target).parameters
    except (TypeError, ValueError):
        return False


class NativeBackend:
    """One vector behind the backend's interface.

    A lane that has to begin anew although the vector sees no end (a bad value, a step cap) is reset alone
    where the vector can do that; else it stays away until the vector itself has ended its episode. If
    the vector raises, it is made anew, and all lanes with it. All lanes share one seed, that of the vector.
    """

    def __init__(self, config: EnvironmentConfig, spec: EnvironmentSpec, num_lanes: int) -> None:
        self.arrays = LaneArrays.allocate(spec, num_lanes)
        self.seeds = np.zeros(num_lanes, np.int64)
        self._config = config
        self._spec = spec
        self._num_lanes = num_lanes
        self._vector: Vector | None = None
        self._mode = AutoresetMode.NEXT_STEP
        self._resetting = np.zeros(num_lanes, np.bool_)  # the vector's next step resets these
        self._first: dict[int, dict[str, Array]] = {}  # same step: first observations not yet asked for
        self._away = np.zeros(num_lanes, np.bool_)
        self._waiting: set[int] = set()
        self._calls = 0
        self._busy = False

    def start(self, seeds: Sequence[int]) -> Report:
        """Make the vector and reset it with the first of ``seeds``."""
        report = Report()
        self._busy, self._calls = True, self._calls + 1
        self.seeds[:] = seeds[0]
        try:
            self._vector = make_vector(self._config, self._num_lanes, seed=seeds[0])
            self._mode = autoreset_of(self._config, self._vector)
            if self._config.vectorization == "envpool":
                observation, _ = self._vector.reset()
            else:
                observation, _ = self._vector.reset(seed=int(seeds[0]))
            for path, leaf in self._checked(observation).items():
                self.arrays.observation[path][...] = leaf
        except ENVIRONMENT_FAULTS as error:
            return self._lose(report, error, FAULT_RAISE_RESET)
        finally:
            self._busy = False
        self._resetting[:] = False
        self._away[:] = False
        self._first.clear()
        report.began = list(range(self._num_lanes))
        return report

    def step(self, actions: dict[str, Array], lanes: Sequence[int] | None) -> Report:
        """Step the vector; rows of lanes that are away are taken over only where an episode begins."""
        report = Report()
        self._busy, self._calls = True, self._calls + 1
        self._first.clear()
        try:
            assert self._vector is not None
            batch = self._spec.action.unflatten({path: array.copy() for path, array in actions.items()})
            observation, reward, terminated, truncated, info = self._vector.step(batch)
            leaves = self._checked(observation)
            done = np.logical_or(terminated, truncated)
            if self._mode is AutoresetMode.SAME_STEP:
                self._settle_same_step(leaves, done, info, lanes, report)
            else:
                report.began = np.flatnonzero(self._resetting & self._away & ~done).tolist()
                self._resetting = done
            self._take(leaves, reward, terminated, truncated, lanes, report)
        except ENVIRONMENT_FAULTS as error:
            return self._lose(report, error, FAULT_RAISE_STEP)
        finally:
            self._busy = False
        self._away[report.began] = False
        report.ended = [lane for lane in np.flatnonzero(done).tolist() if lanes is None or lane in lanes]
        return report

    def begin(self, lanes: Sequence[int]) -> Report:
        """Hand over first observations that are here; the others come with a later step."""
        report = Report()
        if self._vector is None:
            report.faults = [LaneFault(i, FAULT_RAISE_RESET, "the vector is closed", False) for i in lanes]
            return report
        unended: list[int] = []
        for lane in lanes:
            first = self._first.pop(lane, None)
            if first is not None:
                for path, leaf in first.items():
                    self.arrays.observation[path][lane] = leaf
                report.began.append(lane)
            elif not self._resetting[lane] or self._mode is AutoresetMode.DISABLED:
                unended.append(lane)
        if unended and resets_single_lanes(self._config, self._vector):
            try:
                self._reset_some(unended)
            except ENVIRONMENT_FAULTS as error:
                return self._lose(report, error, FAULT_RAISE_RESET)
            report.began += unended
        self._away[list(lanes)] = True
        self._away[report.began] = False
        return report

    def rebuild(self, lanes: Sequence[int], seeds: Sequence[int]) -> Report:
        """Begin anew in a vector that works; make a lost one anew once all its lanes may come back."""
        if self._vector is not None:
            return self.begin(lanes)
        self._waiting.update(lanes)
        if len(self._waiting) < self._num_lanes:
            return Report()
        self._waiting.clear()
        return self.start(seeds)

    def wait(self, timeout_s: float) -> Report:
        """With all lanes away, only steps of the vector bring them back."""
        if self._vector is None:
            time.sleep(timeout_s)
            return Report()
        return self.step(self._spec.action.neutral(self._num_lanes), [])

    def progress(self) -> tuple[int, int] | None:
        """Counts the vector's steps; None while idle."""
        return (0, self._calls) if self._busy else None

    def close(self) -> None:
        """Close the vector."""
        vector, self._vector = self._vector, None
        if vector is not None:
            with contextlib.suppress(*ENVIRONMENT_FAULTS):
                vector.close()

    def _checked(self, observation: Any) -> dict[str, Array]:
        leaves = self._spec.observation.flatten(observation)
        leading = (self._num_lanes,)
        return {leaf.path: coerce(leaves[leaf.path], leaf, leading) for leaf in self._spec.observation.leaves}

    def _take(
        self,
        leaves: dict[str, Array],
        reward: Array,
        terminated: Array,
        truncated: Array,
        lanes: Sequence[int] | None,
        report: Report,
    ) -> None:
        """Copy what the vector returned: everything, or the rows of ``lanes`` and of those that began."""
        arrays = self.arrays
        if lanes is None:
            for path, leaf in leaves.items():
                arrays.observation[path][...] = leaf
            arrays.reward[...], arrays.terminated[...], arrays.truncated[...] = reward, terminated, truncated
            return
        stepped = np.asarray(lanes, np.intp)
        rows = np.concatenate([stepped, np.asarray(report.began, np.intp)])
        for path, leaf in leaves.items():
            arrays.observation[path][rows] = leaf[rows]
        arrays.reward[stepped] = np.asarray(reward)[stepped]
        arrays.terminated[stepped] = np.asarray(terminated)[stepped]
        arrays.truncated[stepped] = np.asarray(truncated)[stepped]

    def _settle_same_step(
        self,
        leaves: dict[str, Array],
        done: Array,
        info: dict[str, Any],
        lanes: Sequence[int] | None,
        report: Report,
    ) -> None:
        """Keep first observations aside and put the true last ones in their place."""
        ended = np.flatnonzero(done).tolist()
        if not ended:
            return
        for path in leaves:
            leaves[path] = leaves[path].copy()
        for lane in ended:
            if self._away[lane]:
                report.began.append(lane)  # the row holds a first observation already
            elif lanes is None or lane in lanes:
                last = self._final_of(info, lane)
                self._first[lane] = {path: leaf[lane].copy() for path, leaf in leaves.items()}
                for path, leaf in leaves.items():
                    leaf[lane] = last[path]

    def _final_of(self, info: dict[str, Any], lane: int) -> dict[str, Array]:
        """The true last observation of an ended lane: one object a lane, or a batch."""
        final = info.get("final_obs", info.get("final_observation"))
        if final is None:
            raise KeyError("the vector resets in the same step but gives no info['final_obs']")
        space = self._spec.observation
        if isinstance(final, np.ndarray) and final.dtype == object:
            found = space.flatten_one(final[lane])
        else:
            found = {path: leaf[lane] for path, leaf in space.flatten(final).items()}
        return {leaf.path: coerce(found[leaf.path], leaf) for leaf in space.leaves}

    def _reset_some(self, lanes: list[int]) -> None:
        """Reset only ``lanes``, in a vector that can do that."""
        assert self._vector is not None
        rows = np.asarray(lanes, np.intp)
        self._busy, self._calls = True, self._calls + 1
        try:
            if self._config.vectorization == "envpool":
                observation, info = self._vector.reset(rows.astype(np.int32))
                order = np.argsort(np.asarray(info["env_id"]), kind="stable")
                rows = np.sort(rows)
                for leaf in self._spec.observation.leaves:
                    found = self._spec.observation.flatten(observation)[leaf.path][order]
                    self.arrays.observation[leaf.path][rows] = coerce(found, leaf, (len(rows),))
            else:
                mask = np.zeros(self._num_lanes, np.bool_)
                mask[rows] = True
                observation, _ = self._vector.reset(options={"reset_mask": mask})
                for path, checked in self._checked(observation).items():
                    self.arrays.observation[path][rows] = checked[rows]
        finally:
            self._busy = False
        self._resetting[rows] = False

    def _lose(self, report: Report, error: BaseException, reason: str) -> Report:
        """The vector failed as a whole: close it and report every lane."""
        self.close()
        detail = describe_fault(error)
        if isinstance(error, Misfit):
            reason, detail = error.reason, error.detail
        report.began, report.ended = [], []
        report.faults = [LaneFault(lane, reason, detail) for lane in range(self._num_lanes)]
        return report
