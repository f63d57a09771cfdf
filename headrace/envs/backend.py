"""What a vector of environments must do for :class:`headrace.envs.lanes.Lanes`, whatever runs it.

A backend steps and resets; it knows nothing of episodes, validation or retries. Results are written
into arrays that stay the same for its whole life. A failure of one lane is a value, never an exception.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.envs.factory import describe
from headrace.envs.spec import EnvironmentSpec
from headrace.types import Array

FAULT_RAISE_STEP = "fault_raise_step"
FAULT_RAISE_RESET = "fault_raise_reset"
FAULT_HANG = "fault_hang"
FAULT_EXIT = "fault_exit"
FAULTS = (FAULT_RAISE_STEP, FAULT_RAISE_RESET, FAULT_HANG, FAULT_EXIT)
_DETAIL_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class LaneFault:
    """One lane failed. ``culprit`` is False for a lane that only shared a process with the one that did."""

    lane: int
    reason: str
    detail: str
    culprit: bool = True


class Report:
    """What a call brought besides the arrays.

    ``began``: lanes whose first observation stands now. ``ended``: lanes whose episode ended, ascending.
    ``faults``: what failed. A plain class, because one is made in every step.
    """

    __slots__ = ("began", "ended", "faults")

    def __init__(self) -> None:
        self.began: list[int] = []
        self.ended: list[int] = []
        self.faults: list[LaneFault] = []


@dataclass(frozen=True, slots=True)
class LaneArrays:
    """Where a backend writes. ``observation`` leaves are ``[B, ...]``, the rest ``[B]``."""

    observation: dict[str, Array]
    reward: Array  # float64
    terminated: Array  # bool
    truncated: Array  # bool

    @classmethod
    def allocate(cls, spec: EnvironmentSpec, num_lanes: int) -> LaneArrays:
        """Zeroed arrays of this process."""
        return cls(
            spec.observation.empty(num_lanes),
            np.zeros(num_lanes, np.float64),
            np.zeros(num_lanes, np.bool_),
            np.zeros(num_lanes, np.bool_),
        )


class Backend(Protocol):
    """Steps and resets B environments.

    A lane that is named in ``faults`` or asked to begin and not named in ``began`` is away: it must not
    be stepped until some later report names it in ``began``.
    """

    arrays: LaneArrays
    seeds: Array  # [B] int64, what each lane's environment was last seeded with

    def start(self, seeds: Sequence[int]) -> Report:
        """Build every lane and reset it with its seed; waits for all of them."""
        ...

    def step(self, actions: dict[str, Array], lanes: Sequence[int] | None) -> Report:
        """Step ``lanes`` (None: all). ``observation`` holds the true last one where an episode ended.

        The caller has cleared the end flags.
        """
        ...

    def begin(self, lanes: Sequence[int]) -> Report:
        """Begin a new episode in each of ``lanes``, without a seed."""
        ...

    def rebuild(self, lanes: Sequence[int], seeds: Sequence[int]) -> Report:
        """Replace the environment of each of ``lanes`` and reset it with its seed."""
        ...

    def wait(self, timeout_s: float) -> Report:
        """With no lane to step: wait for one that is away, at most ``timeout_s``."""
        ...

    def progress(self) -> tuple[int, int] | None:
        """Something that changes whenever an environment of this process returns; None while idle."""
        ...

    def close(self) -> None:
        """Close every environment. Never raises for an environment that fails to close."""
        ...


ENVIRONMENT_FAULTS = (Exception, SystemExit)
"""What counts as the environment's own fault: one that calls ``sys.exit`` must not end its sampler."""


def describe_fault(error: BaseException) -> str:
    """An exception in one bounded line, with the place it was raised at."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return describe(error)[:_DETAIL_CHARACTERS] + place
