"""Environments stepped one after the other in this process, straight into the lanes' arrays.

Also what runs inside each worker process of the asynchronous backend.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

import numpy as np

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
from headrace.envs.bounds import WRONG_DTYPE
from headrace.envs.factory import Environment, make_environment
from headrace.envs.spec import EnvironmentSpec
from headrace.envs.writing import Misfit, coerce
from headrace.types import Array

_IDLE = -1


class SyncBackend:
    """Steps its lanes in order.

    A lane that raises is closed and stays without an environment until :meth:`rebuild`.
    ``marks`` is ``[lane at work or -1, number of calls]``: other threads or processes read it to notice
    an environment that doesn't return.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        spec: EnvironmentSpec,
        arrays: LaneArrays,
        *,
        marks: MutableSequence[int] | Array | None = None,
    ) -> None:
        self.arrays = arrays
        self._config = config
        self._spec = spec
        self._num_lanes = len(arrays.reward)
        self.seeds = np.zeros(self._num_lanes, np.int64)
        self._marks = [_IDLE, 0] if marks is None else marks
        self._environments: list[Environment | None] = [None] * self._num_lanes
        self._steps: list[Callable[[Any], Any]] = [_missing] * self._num_lanes
        self._single = spec.observation.leaves[0] if spec.observation.is_single else None
        self._dtype = np.dtype(spec.observation.leaves[0].dtype)
        self._all = range(self._num_lanes)

    def start(self, seeds: Sequence[int]) -> Report:
        """Build every lane and reset it with its seed."""
        return self.rebuild(self._all, seeds)

    def step(self, actions: dict[str, Array], lanes: Sequence[int] | None) -> Report:
        """Step ``lanes`` (None: all) with ``actions`` leaves ``[B, ...]``, which are not kept."""
        report = Report()
        arrays, marks, steps, single = self.arrays, self._marks, self._steps, self._single
        reward, terminated, truncated = arrays.reward, arrays.terminated, arrays.truncated
        ended, values = report.ended, self._values(actions)
        marks[1] += 1
        if single is not None:
            target, shape, dtype, array_type = arrays.observation[""], single.shape, self._dtype, np.ndarray
        for lane in self._all if lanes is None else lanes:
            marks[0] = lane
            try:
                observation, gain, over, cut, _ = steps[lane](values[lane])
            except ENVIRONMENT_FAULTS as error:
                self._drop(lane)
                report.faults.append(LaneFault(lane, FAULT_RAISE_STEP, describe_fault(error)))
                continue
            try:
                if single is None:
                    self._write(lane, observation)
                elif (
                    observation.__class__ is array_type
                    and observation.dtype is dtype
                    and observation.shape == shape
                ):
                    target[lane] = observation
                else:
                    target[lane] = coerce(observation, single)
                reward[lane] = gain
                if over or cut:
                    ended.append(lane)
                    terminated[lane], truncated[lane] = over, cut
            except Misfit as misfit:
                report.faults.append(LaneFault(lane, misfit.reason, misfit.detail))
            except (TypeError, ValueError) as error:
                detail = f"reward {gain!r}, terminated {over!r}, truncated {cut!r}: {error}"
                report.faults.append(LaneFault(lane, WRONG_DTYPE, detail[:500]))
        marks[0] = _IDLE
        return report

    def begin(self, lanes: Sequence[int]) -> Report:
        """Reset ``lanes`` without a seed, as Gymnasium intends it for later episodes."""
        report = Report()
        self._marks[1] += 1
        for lane in lanes:
            self._reset(lane, None, report)
        self._marks[0] = _IDLE
        return report

    def rebuild(self, lanes: Sequence[int], seeds: Sequence[int]) -> Report:
        """Close what is left of ``lanes``, build them anew and reset them with their seeds."""
        report = Report()
        self._marks[1] += 1
        for lane, seed in zip(lanes, seeds, strict=True):
            self._marks[0] = lane
            self.seeds[lane] = seed
            self._drop(lane)
            try:
                environment = make_environment(self._config)
            except ENVIRONMENT_FAULTS as error:
                detail = f"the environment could not be built: {describe_fault(error)}"
                report.faults.append(LaneFault(lane, FAULT_RAISE_RESET, detail))
                continue
            self._environments[lane], self._steps[lane] = environment, environment.step
            self._reset(lane, seed, report)
        self._marks[0] = _IDLE
        return report

    def wait(self, timeout_s: float) -> Report:
        """Nothing here comes back by itself."""
        time.sleep(timeout_s)
        return Report()

    def progress(self) -> tuple[int, int] | None:
        """The lane at work and the number of the call; None while idle."""
        lane, calls = int(self._marks[0]), int(self._marks[1])
        return None if lane == _IDLE else (lane, calls)

    def close(self) -> None:
        """Close every environment."""
        for lane in self._all:
            self._drop(lane)

    def _values(self, actions: dict[str, Array]) -> Sequence[Any]:
        """One action a lane. Copied first: an environment may change its action in place."""
        if self._spec.action.is_single:
            return list(actions[""].copy())
        copied = {path: values.copy() for path, values in actions.items()}
        unflatten = self._spec.action.unflatten
        return [unflatten({path: values[lane] for path, values in copied.items()}) for lane in self._all]

    def _reset(self, lane: int, seed: int | None, report: Report) -> None:
        self._marks[0] = lane
        environment = self._environments[lane]
        try:
            if environment is None:
                raise RuntimeError("the lane has no environment")
            observation, _ = environment.reset() if seed is None else environment.reset(seed=seed)
        except ENVIRONMENT_FAULTS as error:
            self._drop(lane)
            report.faults.append(LaneFault(lane, FAULT_RAISE_RESET, describe_fault(error)))
            return
        try:
            self._write(lane, observation)
        except Misfit as misfit:
            report.faults.append(LaneFault(lane, misfit.reason, misfit.detail))
            return
        report.began.append(lane)

    def _write(self, lane: int, observation: Any) -> None:
        """Write any observation into its leaves, or raise Misfit."""
        if self._single is not None:
            self.arrays.observation[""][lane] = coerce(observation, self._single)
            return
        try:
            leaves = self._spec.observation.flatten_one(observation)
        except ENVIRONMENT_FAULTS as error:
            raise Misfit.structure(observation, error) from error
        for leaf in self._spec.observation.leaves:
            self.arrays.observation[leaf.path][lane] = coerce(leaves[leaf.path], leaf)

    def _drop(self, lane: int) -> None:
        environment = self._environments[lane]
        self._environments[lane], self._steps[lane] = None, _missing
        if environment is not None:
            with contextlib.suppress(*ENVIRONMENT_FAULTS):
                environment.close()


def _missing(_: Any) -> Any:
    raise RuntimeError("the lane has no environment")
