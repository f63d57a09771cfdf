"""What a learner brings to a round, and what it is told when the round has closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.sync.aggregation import FlatArray
from headrace.types import Array, LearnerAccount, PolicyVersion, RunStatus, TrainingReport

MAX_RETURNS = 100
"""Episodes over which the run's training return is a mean: no contribution needs to tell of more."""

JOINED, REGROUP = "joined", "regroup"
"""Answers that are no outcome: to a hello; and that the same work is to be done again in another group."""

DELTA = "delta/"
"""Prefix in a contribution's state of running moments that are to be merged, not taken over."""

VectorKind = Literal["gradient", "values", "change", "none"]


@dataclass(frozen=True, slots=True)
class Work:
    """What was done for a contribution, since the last one that was not dropped.

    ``env_steps`` and ``samples_trained`` in transitions; ``returns`` are those of the last episodes, at most
    ``MAX_RETURNS``. With ``counts_whole_run`` ``env_steps`` and ``episodes`` are those of the whole run.
    ``idle_share`` is the share of the time that was spent waiting for a round, 0 to 1.
    """

    env_steps: int = 0
    samples_trained: int = 0
    episodes: int = 0
    returns: tuple[float, ...] = ()
    counts_whole_run: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    policy_lags: tuple[int, ...] = ()
    idle_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Contribution:
    """One learner's part of a round.

    ``vector`` ``[N]``: a gradient (mean over ``num_samples``, unclipped), what the parameters have become
    (``values``) or their change from ``base``; of length 0 for ``none``. ``state`` is what acts besides
    them, moments as deltas. ``training`` was asked for. ``accounts`` include this work. ``values_sha256``
    is the hash of the values that the learner holds, as they travel: it needs not be sent the same again.
    """

    sequence: int
    base: PolicyVersion
    kind: VectorKind
    vector: FlatArray
    num_samples: int
    learning_rate: float = 0.0
    state: Mapping[str, Array] = field(default_factory=dict)
    training: Mapping[str, Array] | None = None
    work: Work = field(default_factory=Work)
    accounts: tuple[LearnerAccount, ...] = ()
    values_sha256: str = ""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A learner needs a group. ``generation`` is the one that is broken, 0: it had none."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Group:
    """Learners that reduce gradients among themselves; ``rendezvous`` is the first one's ``host:port``."""

    generation: int
    rank: int
    size: int
    rendezvous: str


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What became of a contribution, and what to go on with.

    ``lag``: versions between its base and the newest one before it was applied. ``applied_through``: highest
    sequence of this incarnation that is part of ``version``. ``values`` ``[N]`` and ``state`` are those of
    ``version``; None: the learner has them. ``local_steps`` until the next contribution; None: as configured.
    """

    outcome: str
    version: PolicyVersion
    status: RunStatus
    report: TrainingReport
    detail: str = ""
    lag: int = 0
    want_training: bool = False
    applied_through: int = -1
    values: FlatArray | None = None
    state: Mapping[str, Array] | None = None
    group: Group | None = None
    local_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Contributor:
    """The newest contribution of a learner that is part of a version."""

    learner_id: str
    incarnation: int
    sequence: int
