"""A draw over many shards, from the first items asked for to one set of columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.clients.shard import ShardClient
from headrace.replay.weights import importance_weights, law
from headrace.types import Array, Sample


@dataclass(frozen=True, slots=True)
class Origin:
    """Items of one shard in a draw: ``rows`` ``[K]`` of the draw are ``keys`` ``[K]`` of that shard."""

    client: ShardClient
    rows: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PoolDraw:
    """M items over all shards, in random order."""

    columns: Mapping[str, Array]  # [M, ...]
    importance_weights: npt.NDArray[np.float32]  # [M]
    versions: npt.NDArray[np.int64]  # [M]
    origins: tuple[Origin, ...]
    by_tier: Mapping[str, int]


@dataclass(slots=True, eq=False)
class Member:
    """A shard in use. ``mass`` and ``count`` are the newest known, from the directory or from itself."""

    shard_id: str
    client: ShardClient
    tier: str
    mass: float
    count: int
    in_trouble: bool = False  # said once, until it answers again


@dataclass(frozen=True, slots=True)
class Found:
    """Items of one shard, and the probability with which that shard was drawn from."""

    member: Member
    sample: Sample
    share: float


@dataclass(slots=True, eq=False)
class Collection:
    """A draw in the making. ``masses``: of every shard that was asked, as the law of this draw sees them.

    A shard that fails contributes nothing: what it gave before is drawn from the others, so that the law of
    the whole is that of the others alone.
    """

    masses: dict[Member, float] = field(default_factory=dict)
    samples: dict[Member, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    out: set[Member] = field(default_factory=set)  # asked no more
    reason: str = ""  # why the last of those is out

    @property
    def size(self) -> int:
        """Items so far."""
        return sum(sample.size for samples in self.samples.values() for sample in samples)

    def add(self, member: Member, sample: Sample) -> None:
        """Items came."""
        self.samples[member].append(sample)

    def leave_out(self, member: Member, reason: str, *, lost: bool) -> None:
        """Ask it no more. ``lost``: forget what it gave."""
        self.out.add(member)
        self.reason = reason
        if lost:
            self.samples.pop(member, None)
        if not self.samples.get(member):
            self.masses.pop(member, None)

    def found(self) -> list[Found]:
        """All items, with the law they were drawn by."""
        shares = dict(zip(self.masses, law(list(self.masses.values())), strict=True))
        return [
            Found(member, sample, float(shares[member]))
            for member, samples in self.samples.items()
            for sample in samples
        ]


def merge(found: Sequence[Found], *, total_count: int, exponent: float, rng: np.random.Generator) -> PoolDraw:
    """One draw of all that was found, with importance weights for ``total_count`` items over all shards."""
    samples = [one.sample for one in found]
    probabilities = np.concatenate([one.share * one.sample.probabilities for one in found])
    # Shuffled, so that no minibatch of an update is of one shard alone.
    order = rng.permutation(len(probabilities)) if len(found) > 1 else np.arange(len(probabilities))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows = np.split(place, np.cumsum([sample.size for sample in samples])[:-1])
    by_tier: Counter[str] = Counter()
    for one in found:
        by_tier[one.member.tier] += one.sample.size
    return PoolDraw(
        columns={name: _scatter([s.columns[name] for s in samples], rows) for name in samples[0].columns},
        importance_weights=importance_weights(probabilities[order], total_count, exponent),
        versions=_scatter([sample.versions for sample in samples], rows),
        origins=tuple(
            Origin(one.member.client, places, one.sample.keys)
            for one, places in zip(found, rows, strict=True)
        ),
        by_tier=by_tier,
    )


def split(found: Iterable[Found], num_items: int) -> tuple[list[Found], list[Found]]:
    """The first ``num_items`` items, and what is left."""
    taken: list[Found] = []
    kept: list[Found] = []
    for one in found:
        room = num_items - sum(other.sample.size for other in taken)
        for part, items in ((taken, slice(0, room)), (kept, slice(room, None))):
            sample = _rows(one.sample, items)
            if sample.size:
                part.append(Found(one.member, sample, one.share))
    return taken, kept


def _scatter(arrays: Sequence[Array], rows: Sequence[npt.NDArray[np.int64]]) -> Array:
    """One array with the rows of each of ``arrays`` at their ``rows``; one array alone is taken as it is."""
    if len(arrays) == 1:
        return arrays[0]
    whole = np.empty((sum(map(len, rows)), *arrays[0].shape[1:]), arrays[0].dtype)
    for array, places in zip(arrays, rows, strict=True):
        whole[places] = array
    return whole


def _rows(sample: Sample, items: slice) -> Sample:
    columns = {name: column[items] for name, column in sample.columns.items()}
    return Sample(sample.keys[items], sample.probabilities[items], sample.versions[items], columns)
