"""How what a learner has learned becomes part of a version, whoever else learns in the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from headrace.types import Array, LearnerAccount, PolicyVersion, RunStatus
from services.learner.progress import Progress

ROUND = "round"
"""What a learner waits for between handing its work in and the close of the round."""

STALE_CONTRIBUTION = "stale_contribution"
INVALID_CONTRIBUTION = "invalid_contribution"
"""Why transitions that were learned from are not part of any version."""


class Trainable(Protocol):
    """What an exchange needs of an algorithm."""

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act. Copies."""
        ...

    def training_state(self) -> dict[str, Array]:
        """What else the next update depends on. Copies."""
        ...

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from saved state; ValueError or KeyError if it belongs to another network or algorithm."""
        ...


@dataclass(frozen=True, slots=True)
class Learned:
    """What was done since the last exchange.

    ``env_steps`` and ``samples`` in transitions, ``returns`` of the episodes that ended, ``lags`` of what it
    was done on, in updates. With ``counts_whole_run`` steps, episodes and returns are those of the run.
    ``weight``: samples behind one pass, by which this counts beside the work of others.
    """

    losses: Mapping[str, float]
    lags: tuple[int, ...]
    env_steps: int
    samples: int
    weight: int
    episodes: int
    returns: tuple[float, ...] = field(default=())
    counts_whole_run: bool = False
    accounts: tuple[LearnerAccount, ...] = ()


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The version to go on from. ``dropped``: why this learner's work is not part of it; empty: it is."""

    version: PolicyVersion
    status: RunStatus
    dropped: str = ""


def mean_losses(losses: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the updates of one exchange; of what is counted (``non_finite``) the sum."""
    means = {name: fmean(one[name] for one in losses) for name in losses[0]}
    return means | {"non_finite": sum(one.get("non_finite", 0.0) for one in losses)}


class Exchange(Protocol):
    """Hands work in and keeps the algorithm on the newest version. Used by one thread."""

    progress: Progress
    """How far the whole run is."""
    version: PolicyVersion | None
    """The version whose parameters the algorithm holds."""
    wait_seconds: float
    """Seconds spent waiting for others so far."""

    @property
    def updates(self) -> int:
        """Updates to make until the next exchange."""
        ...

    def recover(self) -> tuple[LearnerAccount, ...]:
        """Load the newest version, or publish the initial one; returns the accounts that go with it."""
        ...

    def exchange(self, work: Callable[[], Learned]) -> Exchanged | None:
        """Have the algorithm learn and hand in what comes of it. None: this process is to stop.

        ``work`` may be called more than once, each time from where the algorithm had been at first.
        """
        ...
