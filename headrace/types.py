"""The values that services hand to each other: frozen, numpy only, ignorant of wires.

Shapes: ``T`` steps of a fragment, ``B`` lanes (environments of one vector), ``K`` episodes that
ended inside the fragment, ``E`` episodes reported. Arrays are time-major ``[T, B, ...]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]
"""Named arrays. A space with several leaves has one column a leaf: ``observation/image``."""

# Column names. A leaf of a composite space is appended after a slash.
OBSERVATION = "observation"  # [T, B, ...] what the policy saw
ACTION = "action"  # [T, B, ...] in the environment's own values
REWARD = "reward"  # [T, B] float32
TERMINATED = "terminated"  # [T, B] bool; wins over truncated
TRUNCATED = "truncated"  # [T, B] bool; by the environment or by the step cap
BEHAVIOR_LOG_PROB = "behavior_log_prob"  # [T, B] float32
VALUE = "value"  # [T, B] float32, of the behavior policy, in units of reward
VALID = "valid"  # [T, B] bool; absent = all valid. False: reset step, or a discarded step
BOOTSTRAP_OBSERVATION = "bootstrap_observation"  # [B, ...] the observation after the last step
BOOTSTRAP_VALUE = "bootstrap_value"  # [B] float32
FINAL_INDEX = "final_index"  # [K] int32, t * B + lane, ascending
FINAL_OBSERVATION = "final_observation"  # [K, ...] true last observation of an ended episode
FINAL_VALUE = "final_value"  # [K] float32
LANE_SEED = "lane_seed"  # [B] int64, seed of the lane's environment
LANE_EPISODE = "lane_episode"  # [B] int64, ordinal of the lane's episode at t = 0
LANE_STEP = "lane_step"  # [B] int32, step inside that episode at t = 0
EPISODE_RETURN = "episode/return"  # [E] float64, episodes that ended here
EPISODE_LENGTH = "episode/length"  # [E] int32
ACTION_VALUE = "action_value"  # [T, B] float32, Q of the action taken, by a policy that has one
PRIORITY = "priority"  # [T, B] float32, of a fragment on its way to the cold tier of replay
NORMALIZER = "normalizer"  # normalizer/<leaf>/{count,mean,m2}: float64 delta since the last fragment

# Columns of what is drawn from replay: M items, one row each, besides observation and action.
NEXT_OBSERVATION = "next_observation"  # [M, ...] what the target bootstraps from
N_STEP_RETURN = "n_step_return"  # [M] float32, rewards discounted over the item's steps
DISCOUNT = "discount"  # [M] float32, of the bootstrap: gamma ** steps, 0 if it terminated


@dataclass(frozen=True, slots=True, order=True)
class PolicyVersion:
    """A version of the parameters, issued by the parameter server alone.

    ``number`` counts published updates and never falls; ``epoch`` rises at each restart of the
    parameter server and fences whatever was in flight. Ordered by (epoch, number).
    """

    epoch: int
    number: int

    def lag_behind(self, current: PolicyVersion) -> int:
        """Policy lag of this version against ``current``, in updates (never negative)."""
        return max(0, current.number - self.number)

    def __str__(self) -> str:
        return f"{self.epoch}.{self.number}"


@dataclass(frozen=True, slots=True, order=True)
class SamplerIdentity:
    """One life of one sampler. A restart is a new incarnation with a new seed stream."""

    sampler_id: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.sampler_id}/{self.incarnation}"


@dataclass(frozen=True, slots=True, order=True)
class FragmentId:
    """The name of a fragment: who made it and the how-manieth of that incarnation (from 0)."""

    sampler: SamplerIdentity
    sequence: int

    def __str__(self) -> str:
        return f"{self.sampler}/{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> FragmentId:
        """Read ``sampler_id/incarnation/sequence``; ValueError on anything else."""
        parts = text.rsplit("/", 2)
        if len(parts) != 3 or not parts[0] or not (parts[1].isdigit() and parts[2].isdigit()):
            raise ValueError(f"not a fragment id: {text!r}; expected sampler/incarnation/sequence")
        return cls(SamplerIdentity(parts[0], int(parts[1])), int(parts[2]))


@dataclass(frozen=True, slots=True)
class Fragment:
    """T steps of B lanes, acted by exactly one policy version of one sampler incarnation.

    ``num_transitions`` counts valid transitions only. ``produced_through`` is the incarnation's
    cumulative count of transitions sealed into fragments up to and with this one, so a receiver
    sees a gap as a number. ``permit`` is the admission ticket it was made under (-1: none).
    ``steps_per_s``: steps per lane and second while it was made, without any wait for leave (0: unknown).
    """

    id: FragmentId
    policy_version: PolicyVersion
    config_digest: str
    columns: Columns
    num_transitions: int
    produced_through: int
    permit: int = -1
    steps_per_s: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(int(column.nbytes) for column in self.columns.values())

    @property
    def num_steps(self) -> int:
        """T."""
        return int(self.columns[REWARD].shape[0])

    @property
    def num_lanes(self) -> int:
        """B."""
        return int(self.columns[REWARD].shape[1])


@dataclass(frozen=True, slots=True)
class Batch:
    """Fragments side by side: columns ``[T, sum of B, ...]``, what an algorithm learns from.

    ``final_index`` is renumbered to the batch's own lanes. ``policy_lags`` has one entry a
    fragment (updates).
    """

    columns: Columns
    num_transitions: int
    policy_lags: tuple[int, ...] = ()
    fragment_ids: tuple[FragmentId, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """M items drawn from one shard of replay.

    ``keys`` name them in that shard, for priorities that come back. ``probabilities`` are those they were
    really drawn with inside the shard.
    """

    keys: npt.NDArray[np.int64]  # [M]
    probabilities: npt.NDArray[np.float64]  # [M]
    versions: npt.NDArray[np.int64]  # [M] number of the version that acted
    columns: Columns  # [M, ...] each

    @property
    def size(self) -> int:
        """M."""
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """What an off-policy algorithm learns from in one update: G minibatches of M items, one after another."""

    columns: Columns  # [G * M, ...]: observation, action, n_step_return, discount, next_observation
    importance_weights: npt.NDArray[np.float32]  # [G * M], at most 1
    num_gradient_steps: int  # G


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a sampler needs to act as one policy version: parameters and normalizer state."""

    version: PolicyVersion
    parameters: Mapping[str, Array]
    config_digest: str
    sha256: str


@dataclass(frozen=True, slots=True)
class LearnerAccount:
    """What the learner has settled of one sampler incarnation, tied to a published version.

    ``settled_through`` is the highest settled sequence (-1: none); every sequence up to it is
    trained or dropped, none twice. Counts are transitions.
    """

    sampler: SamplerIdentity
    settled_through: int = -1
    trained: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What one update tells the world; rides with the published version.

    ``env_steps`` and ``samples_trained`` are totals of the run (transitions; samples count every
    epoch). ``episode_return_mean`` is over the last 100 finished training episodes (None: none yet).
    """

    env_steps: int
    updates: int
    samples_trained: int
    episodes: int
    episode_return_mean: float | None
    episode_return_std: float | None
    metrics: Mapping[str, float]
    policy_lags: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of evaluating one version: undiscounted returns of ``episodes`` episodes.

    ``env_steps`` are those of the run when the version was published (filled by the parameter server).
    """

    version: PolicyVersion
    return_mean: float
    return_std: float
    episodes: int
    env_steps: int = 0


RunPhase = Literal["starting", "running", "finished", "failed", "interrupted"]
"""Where a run is. ``starting``: no version yet; the last three are final and carry a reason."""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Phase of a run; ``version`` is the newest one ever issued (None: none yet)."""

    phase: RunPhase
    reason: str = ""
    version: PolicyVersion | None = None

    @property
    def ended(self) -> bool:
        """Whether everyone should drain."""
        return self.phase in ("finished", "failed", "interrupted")


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at a glance: its phase, and report and accounts of its newest version.

    ``checkpoint_problem``: why no checkpoint can be written just now; empty if they can.
    """

    status: RunStatus
    report: TrainingReport | None = None
    accounts: tuple[LearnerAccount, ...] = ()
    best: Evaluation | None = None
    checkpoint_problem: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """A sampler that has joined a run: who it is there, what people call its process, its learner's number.

    ``silent_s``: seconds since it was last heard. ``produced``: transitions that it has stepped.
    """

    id: str
    name: str
    incarnation: int
    learner: int
    silent_s: float
    produced: int


@dataclass(frozen=True, slots=True)
class LedgerGlance:
    """Where the transitions of a run are, in sums over all ``incarnations``, and who is there.

    ``produced = trained + stored + evicted + dropped + in_flight + lost`` where ``balanced``; ``problems``
    says in words what does not add up. ``sampled``: items drawn from replay.
    """

    produced: int
    trained: int
    stored: int
    evicted: int
    dropped: Mapping[str, int]
    in_flight: int
    lost: Mapping[str, int]
    sampled: int
    balanced: bool
    problems: tuple[str, ...]
    incarnations: int
    members: tuple[Member, ...]


def as_columns(prefix: str, leaves: Mapping[str, Array]) -> dict[str, Array]:
    """Name the leaves of a space as columns: leaf ``""`` is the bare prefix, others follow a slash."""
    return {f"{prefix}/{leaf}" if leaf else prefix: array for leaf, array in leaves.items()}


def leaves_of(prefix: str, columns: Columns) -> dict[str, Array]:
    """Inverse of :func:`as_columns`: the columns of ``prefix`` keyed by leaf path."""
    return {leaf: columns[name] for leaf, name in names_of(prefix, columns).items()}


def names_of(prefix: str, columns: Columns) -> dict[str, str]:
    """Names of the columns of ``prefix`` by leaf path."""
    head = prefix + "/"
    found = {name[len(head) :]: name for name in columns if name.startswith(head)}
    if prefix in columns:
        found[""] = prefix
    return found


def empty_valid_mask(num_steps: int, num_lanes: int) -> npt.NDArray[np.bool_]:
    """An all-valid mask ``[T, B]``."""
    return np.ones((num_steps, num_lanes), np.bool_)
