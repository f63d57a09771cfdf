"""What shards, learners and the directory of replay tell each other. Plain values; all counts are totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.types import SamplerIdentity

Tier = Literal["hot", "cold"]

SAMPLES_PER_INSERT = "samples_per_insert"
MIN_SIZE = "min_size_to_sample"


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """One shard: where it is and whose experience it holds.

    ``sampler``: the incarnation that fills it; None for a cold partition. ``fragment_transitions``: the
    largest insert (T x B); 0 where nothing is inserted.
    """

    shard_id: str
    address: str
    tier: Tier
    sampler: SamplerIdentity | None = None
    fragment_transitions: int = 0


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """State of a shard. ``mass`` and ``count`` are of the items that can be drawn now.

    ``inserted``, ``evicted`` (transitions) and ``drawn`` (items) are totals since this incarnation began.
    """

    mass: float = 0.0
    count: int = 0
    inserted: int = 0
    evicted: int = 0
    drawn: int = 0
    newest_version: int = 0
    fill_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A finished training episode; ``number`` counts those of its incarnation, from 0."""

    number: int
    episode_return: float
    length: int


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a shard says: its state, the episodes not known to the directory yet, and the leave it holds.

    ``episodes``: how many have finished in total. ``insert_allowance``: the largest it was granted so far.
    """

    status: ShardStatus
    episodes: int = 0
    results: tuple[EpisodeResult, ...] = ()
    insert_allowance: int = 0


@dataclass(frozen=True, slots=True)
class ShardGrant:
    """What the directory answers: transitions that this incarnation may have inserted in total.

    ``throttled_by``: why there is no more, "" if there is. ``episodes``: how many of its episodes are taken
    in; it need not send those again.
    """

    insert_allowance: int = 0
    throttled_by: str = ""
    episodes: int = 0


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard as learners see it: draw from it in proportion to ``mass``."""

    shard_id: str
    address: str
    tier: Tier
    mass: float
    count: int


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """What a learner has to know to draw; replaces all earlier ones.

    ``sample_allowance``: samples that this learner's process may have drawn in total; ``outage_samples``
    more while the directory can't be reached. ``throttled_by``: why there is no more, "" if there is.
    ``samples`` and ``env_steps`` are totals of the run; ``recent_*`` are of the newest 100 episodes.
    ``drift``: total variation between these masses and the ones sent before, 0 to 1.
    """

    shards: tuple[ShardView, ...] = ()
    sample_allowance: int = 0
    outage_samples: int = 0
    throttled_by: str = ""
    samples: int = 0
    env_steps: int = 0
    episodes: int = 0
    recent_returns: tuple[float, ...] = ()
    recent_lengths: tuple[int, ...] = ()
    drift: float = 0.0

    @property
    def count(self) -> int:
        """Transitions that can be drawn now, in all shards."""
        return sum(shard.count for shard in self.shards)

    @property
    def mass(self) -> float:
        """Mass of all shards."""
        return sum(shard.mass for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Followed:
    """What the directory answers a learner: the number of its process, and a view if there is one."""

    incarnation: int
    view: DirectoryView | None = None


@dataclass(frozen=True, slots=True)
class DirectoryGlance:
    """Replay as it is now, for people.

    The allowance of ``view`` is that of all learners together. ``shards``: state by name. ``learners``:
    newest version by name. ``limited_s``: seconds in which the limiter held back at least one sampler
    ("insert"), one learner ("sample"), since the directory's process began.
    """

    view: DirectoryView
    shards: Mapping[str, ShardStatus]
    learners: Mapping[str, int]
    limited_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SamplerTotals:
    """What one sampler has inserted and finished: its newest incarnation, and all earlier ones together."""

    incarnation: int
    inserted: int = 0
    episodes: int = 0
    past_inserted: int = 0
    past_episodes: int = 0


@dataclass(frozen=True, slots=True)
class LearnerTotals:
    """What one learner has drawn: its newest process (the directory numbers them), and all earlier ones."""

    incarnation: int
    drawn: int = 0
    past_drawn: int = 0


@dataclass(frozen=True, slots=True)
class DirectoryTotals:
    """What must outlive the directory's process. ``shards``: names of those that were there."""

    samplers: dict[str, SamplerTotals] = field(default_factory=dict)
    learners: dict[str, LearnerTotals] = field(default_factory=dict)
    recent: tuple[tuple[float, int], ...] = ()
    shards: tuple[str, ...] = ()
