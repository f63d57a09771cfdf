"""Which chunks a cold partition holds, of whom, in what state; what is to leave next. Pure state.

A chunk is on *standby* while its sampler's hot tier has it, too, and *active* once no other place has it.
Numbers of chunks rise in the order of storing, so within an incarnation in the order of sequence; the oldest
leave first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.cold_accounts import ColdCounts
from headrace.types import SamplerIdentity
from services.replay.chunks import ChunkMeta

Priorities = npt.NDArray[np.float32]
ENTRY_BYTES = 256
"""What Redis keeps of a chunk besides its value, about: two keys and the index entry."""


@dataclass(slots=True, eq=False)
class Stored:
    """A stored chunk. ``priorities`` ``[items]``: for when it is active (None: the largest there may be)."""

    chunk: int
    meta: ChunkMeta
    priorities: Priorities | None
    active: bool = False
    pending: bool = True  # items that wait for the following fragment are not drawable yet


@dataclass(slots=True, eq=False)
class Incarnation:
    """What the partition knows of one sampler incarnation; see :class:`ColdCounts` for the fields."""

    sampler: SamplerIdentity
    received: int = 0
    evicted: int = 0
    redis_lost: int = 0
    damaged: int = 0
    standby: int = 0
    active: int = 0
    received_through: int = -1
    released_through: int = -1
    evicted_through: int = -1
    gone: bool = False
    chunks: dict[int, Stored] = field(default_factory=dict)  # by sequence, ascending
    waiting: dict[int, Stored] = field(default_factory=dict)  # those on standby, ascending
    last: Stored | None = None  # the newest one that came

    @classmethod
    def restored(cls, sampler: SamplerIdentity, counts: ColdCounts) -> Incarnation:
        """Go on from counts; what is stored is to be found again."""
        return cls(
            sampler,
            received=counts.received,
            evicted=counts.evicted,
            redis_lost=counts.redis_lost,
            damaged=counts.damaged,
            received_through=counts.received_through,
            released_through=counts.released_through,
            evicted_through=counts.evicted_through,
            gone=bool(counts.gone),
        )

    def counts(self) -> ColdCounts:
        """As they are now."""
        return ColdCounts(
            received=self.received,
            standby=self.standby,
            active=self.active,
            evicted=self.evicted,
            redis_lost=self.redis_lost,
            damaged=self.damaged,
            received_through=self.received_through,
            released_through=self.released_through,
            evicted_through=self.evicted_through,
            gone=int(self.gone),
        )

    def is_released(self, sequence: int) -> bool:
        """Whether the hot tier has let go of a fragment."""
        return self.gone or sequence <= self.released_through

    def follows(self, sequence: int) -> bool:
        """Whether it is settled what follows a fragment: it is stored, or will never be."""
        return self.gone or self.received_through > sequence


class Catalog:
    """All chunks of one partition. Not thread-safe.

    Invariant: ``nbytes`` (values and entries) is the sum over all stored chunks. Counts follow at once.
    ``dirty`` are the incarnations whose counts have changed since somebody cleared it.
    """

    def __init__(self) -> None:
        self.incarnations: dict[SamplerIdentity, Incarnation] = {}
        self.stored: dict[int, Stored] = {}  # by number, ascending
        self.next_chunk = 0
        self.nbytes = 0
        self.dirty: set[SamplerIdentity] = set()

    def incarnation(self, sampler: SamplerIdentity) -> Incarnation:
        """The one of that name, made if it is new."""
        found = self.incarnations.get(sampler)
        if found is None:
            found = self.incarnations[sampler] = Incarnation(sampler)
        return found

    def claim(self) -> int:
        """A number for a new chunk."""
        self.next_chunk += 1
        return self.next_chunk - 1

    def add(self, stored: Stored, *, counted: bool = False) -> None:
        """Enter a chunk on standby. ``counted``: it is in the counts of what was received already."""
        meta = stored.meta
        owner = self.incarnation(meta.sampler)
        self.stored[stored.chunk] = owner.chunks[meta.sequence] = owner.waiting[meta.sequence] = stored
        owner.last = stored
        self.next_chunk = max(self.next_chunk, stored.chunk + 1)
        self.nbytes += meta.nbytes + ENTRY_BYTES
        owner.standby += meta.num_transitions
        if not counted:
            owner.received += meta.num_transitions
        owner.received_through = max(owner.received_through, meta.sequence)
        self.dirty.add(meta.sampler)

    def activate(self, stored: Stored) -> None:
        """It is in no other place any more."""
        self._move(stored, active=True)

    def stand_by(self, stored: Stored) -> None:
        """Its hot tier is back."""
        self._move(stored, active=False)

    def evict(self, stored: Stored) -> None:
        """Let a chunk go for want of room or because it is too old."""
        owner = self._remove(stored)
        owner.evicted += stored.meta.num_transitions
        owner.evicted_through = max(owner.evicted_through, stored.meta.sequence)

    def lose(self, stored: Stored, *, damaged: bool) -> None:
        """A chunk is not there any more, or not what it was."""
        owner = self._remove(stored)
        if damaged:
            owner.damaged += stored.meta.num_transitions
        else:
            owner.redis_lost += stored.meta.num_transitions

    def oldest(self) -> Stored | None:
        """What leaves next."""
        return next(iter(self.stored.values()), None)

    def chain(self, chunk: int, length: int) -> Iterator[tuple[int, int]]:
        """Up to ``length`` pairs of a stored chunk and the one that follows it in time, from ``chunk`` on."""
        stored = self.stored.get(chunk)
        for _ in range(length):
            if stored is None:
                return
            following = self.incarnations[stored.meta.sampler].chunks.get(stored.meta.sequence + 1)
            if following is not None:
                yield stored.chunk, following.chunk
            stored = following

    def to_release(self, owner: Incarnation) -> Iterator[Stored]:
        """Chunks on standby that the hot tier has let go of, oldest first; each is to be activated."""
        while owner.waiting:
            stored = next(iter(owner.waiting.values()))
            if not owner.is_released(stored.meta.sequence):
                return
            yield stored

    def total(self) -> ColdCounts:
        """Sums over all incarnations; sequences mean nothing in it."""
        rows = list(self.incarnations.values())
        return ColdCounts(
            received=sum(row.received for row in rows),
            standby=sum(row.standby for row in rows),
            active=sum(row.active for row in rows),
            evicted=sum(row.evicted for row in rows),
            redis_lost=sum(row.redis_lost for row in rows),
            damaged=sum(row.damaged for row in rows),
        )

    def _move(self, stored: Stored, *, active: bool) -> None:
        if stored.active == active:
            return
        owner, count = self.incarnations[stored.meta.sampler], stored.meta.num_transitions
        owner.active += count if active else -count
        owner.standby -= count if active else -count
        stored.active = active
        if active:
            del owner.waiting[stored.meta.sequence]
        else:
            owner.waiting[stored.meta.sequence] = stored
        self.dirty.add(stored.meta.sampler)

    def _remove(self, stored: Stored) -> Incarnation:
        meta = stored.meta
        owner = self.incarnations[meta.sampler]
        del self.stored[stored.chunk]
        del owner.chunks[meta.sequence]
        owner.waiting.pop(meta.sequence, None)
        if owner.last is stored:
            owner.last = None
        self.nbytes -= meta.nbytes + ENTRY_BYTES
        if stored.active:
            owner.active -= meta.num_transitions
        else:
            owner.standby -= meta.num_transitions
        self.dirty.add(meta.sampler)
        return owner
