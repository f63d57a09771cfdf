"""The cold tier as a shard: chunks in Redis, drawn from by the same law as a hot one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.cold_accounts import ColdAccounts, ColdCounts
from headrace.config.sections import ReplayConfig
from headrace.errors import InvalidDataError
from headrace.events import OnEvent, no_event
from headrace.replay.items import Drawn, ItemIndex, PriorityOutcome, check_priorities
from headrace.replay.shard import ShardStats
from headrace.types import Fragment, Sample, SamplerIdentity
from services.replay.catalog import Catalog, Incarnation, Priorities, Stored
from services.replay.chunks import ChunkMeta
from services.replay.reader import CACHE_BYTES, ChunkReader, ColdTerms
from services.replay.recovery import recover
from services.replay.store import ChunkStore, StoreError

_DRAWS = 4  # what vanished between drawing and reading is drawn again
_MIN_RATIO = 16  # chunks smaller than this part of a fragment are evicted by number before bytes


@dataclass(frozen=True, slots=True)
class Restored:
    """What a start has found. Counts are transitions."""

    stored: int
    dropped: int
    redis_lost: int


class ColdShard:
    """One partition's chunks. Thread-safe; the sink's writer alone stores and evicts.

    Invariants: only what is active has mass; what is evicted is off the index before it leaves Redis; a
    value is served only after its checksum matched. ``_lock`` guards catalog, index and accounts; Redis is
    never called under it.
    """

    def __init__(
        self,
        replay: ReplayConfig,
        store: ChunkStore,
        terms: ColdTerms,
        accounts: ColdAccounts,
        *,
        rng: np.random.Generator,
        on_event: OnEvent = no_event,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """``cache_bytes``: of decoded chunks that were drawn from lately."""
        self._replay = replay
        self._store = store
        self._terms = terms
        self._accounts = accounts
        self._on_event = on_event
        self.capacity_bytes = replay.cold_capacity_bytes // replay.partitions
        self._lock = threading.Lock()
        self._catalog = Catalog()
        self._index = self._make_index(rng)
        self._rng = rng
        self._reader = ChunkReader(store, terms, cache_bytes=cache_bytes)
        self._newest_version = 0
        self._drawn = 0
        self._unreliable = False
        self._garbage: list[int] = []  # chunks to delete from Redis

    # Start.

    def restore(self, *, keep: bool) -> Restored:
        """Take up what Redis holds, compared with the accounts; ``keep`` False: evict it. Raises StoreError.

        Of what has not been drawn since, priorities are the largest there may be.
        """
        found = recover(self._store.index(), self._accounts.read())
        with self._lock:
            self._catalog = catalog = found.catalog
            self._index = self._make_index(self._rng)
            self._garbage = found.garbage
            dropped = 0
            while (oldest := catalog.oldest()) is not None and (not keep or self._is_crowded(oldest, 0)):
                dropped += oldest.meta.num_transitions
                self._evict(oldest)
            for owner in catalog.incarnations.values():
                self._release(owner)
            self._write_accounts()
            total = catalog.total()
        return Restored(total.standby + total.active, dropped, found.redis_lost)

    # The writer's side: one thread.

    def claim(self) -> int:
        """A number for a chunk that is about to be stored."""
        with self._lock:
            return self._catalog.claim()

    def make_room(self, nbytes: int) -> list[int]:
        """Evict what must go for ``nbytes`` more, and what is too old; returns what Redis is to delete.

        The result grows until :meth:`deleted` confirms it.
        """
        with self._lock:
            while (oldest := self._catalog.oldest()) is not None and (
                self._is_crowded(oldest, nbytes) or self._is_too_old(oldest)
            ):
                self._evict(oldest)
            self._write_accounts()
            return list(self._garbage)

    def deleted(self, chunks: Sequence[int]) -> None:
        """Redis has deleted these."""
        with self._lock:
            gone = set(chunks)
            self._garbage = [chunk for chunk in self._garbage if chunk not in gone]

    def commit(self, chunks: Sequence[tuple[int, ChunkMeta, Priorities | None]]) -> None:
        """Chunks are in Redis: on standby, or active if their hot tier has let go of them already."""
        with self._lock:
            for chunk, meta, priorities in chunks:
                before = self._catalog.incarnation(meta.sampler).last
                kept = priorities if self._replay.selector == "prioritized" else None
                stored = Stored(chunk, meta, kept, pending=bool(meta.pending))
                self._catalog.add(stored)
                self._newest_version = max(self._newest_version, meta.version)
                owner = self._catalog.incarnation(meta.sampler)
                if before is not None and before.active:
                    self._open_pending(before)
                self._release(owner)
            self._write_accounts()

    def reconcile(self) -> int:
        """Compare with Redis, which may have come back with less; returns lost transitions. StoreError."""
        with self._lock:
            held = list(self._catalog.stored)
            self._unreliable = False
        missing = self._store.missing(held)
        return sum(self._lose(chunk, damaged=False) for chunk in missing)

    @property
    def unreliable(self) -> bool:
        """Whether something that should be in Redis was not there: time for :meth:`reconcile`."""
        return self._unreliable

    # What samplers say.

    def received_through(self, sampler: SamplerIdentity) -> int:
        """Highest sequence of an incarnation that was ever stored, -1: none."""
        with self._lock:
            owner = self._catalog.incarnations.get(sampler)
            return -1 if owner is None else owner.received_through

    def release(self, sampler: SamplerIdentity, through: int, priorities: Priorities | None) -> None:
        """The hot tier has let go of every fragment up to ``through``, whose newest priorities these are.

        InvalidDataError for priorities ``[T * B]`` that are none.
        """
        if priorities is not None:
            self._check_priorities(priorities)
        with self._lock:
            owner = self._catalog.incarnation(sampler)
            stored = owner.chunks.get(through)
            if stored is not None and priorities is not None and self._replay.selector == "prioritized":
                if stored.pending or not stored.active:
                    stored.priorities = priorities
                if stored.active:
                    keys = stored.chunk * self._terms.num_items + np.arange(self._terms.num_items)
                    self._index.update(keys, priorities)
            owner.released_through = max(owner.released_through, through)
            self._catalog.dirty.add(sampler)
            self._release(owner)
            self._write_accounts()

    def release_incarnation(self, sampler: SamplerIdentity) -> None:
        """An incarnation has left or died: all its copies are active from now on. Idempotent."""
        with self._lock:
            owner = self._catalog.incarnation(sampler)
            if not owner.gone:
                owner.gone = True
                self._catalog.dirty.add(sampler)
                self._release(owner)
                self._write_accounts()

    def readmit(self, sampler: SamplerIdentity) -> None:
        """An incarnation that was given up is back with its hot tier: its copies are on standby again."""
        with self._lock:
            owner = self._catalog.incarnations.get(sampler)
            if owner is None or not owner.gone:
                return
            owner.gone = False
            self._catalog.dirty.add(sampler)
            for stored in owner.chunks.values():
                if stored.active and not owner.is_released(stored.meta.sequence):
                    stored.priorities = self._newest_priorities(stored)
                    stored.pending = bool(stored.meta.pending)
                    self._index.remove(stored.chunk)
                    self._catalog.stand_by(stored)
            self._write_accounts()

    def known(self) -> list[SamplerIdentity]:
        """All incarnations that ever sank anything here."""
        with self._lock:
            return list(self._catalog.incarnations)

    def present(self) -> list[SamplerIdentity]:
        """Incarnations that have neither left nor been given up."""
        with self._lock:
            return [owner.sampler for owner in self._catalog.incarnations.values() if not owner.gone]

    # The shard.

    def sample(self, num_items: int, sequence_length: int = 1) -> Sample | None:
        """Draw with replacement; None if there is nothing to draw, or nothing can be read.

        Chunks that follow those drawn are read too, as far as n-step targets and sequences reach.
        """
        parts: list[Drawn] = []
        fragments: dict[int, Fragment] = {}
        followers: dict[int, int] = {}
        left = num_items
        for _ in range(_DRAWS):
            if left <= 0 or not self._store.readable:
                break
            with self._lock:
                if self._index.mass <= 0.0:
                    break
                drawn = self._index.draw(left)
                needed = self._needed(drawn, followers, sequence_length)
            try:
                fragments |= self._fetch([chunk for chunk in needed if chunk not in fragments])
            except StoreError:
                break
            good = np.isin(drawn.chunks, np.fromiter(fragments, np.int64, len(fragments)))
            parts.append(drawn.where(good))
            left -= int(np.count_nonzero(good))
        if left == num_items:
            return None
        drawn = Drawn.joined(parts)
        with self._lock:
            self._drawn += len(drawn.keys)
        return Sample(
            drawn.keys,
            drawn.probabilities,
            drawn.versions,
            self._reader.gather(drawn, fragments, followers, sequence_length),
        )

    def update_priorities(
        self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating]
    ) -> PriorityOutcome:
        """Set priorities ``[N]``; what is gone is ignored, what is no priority is refused."""
        with self._lock:
            return self._index.update(keys, priorities)

    def set_version(self, number: int) -> None:
        """Say which policy version is the newest, for freshness."""
        with self._lock:
            self._newest_version = max(self._newest_version, number)
            self._index.set_version(number)

    def stats(self) -> ShardStats:
        """How it stands: without mass while it can't be read."""
        readable = self._store.readable
        with self._lock:
            total, oldest = self._catalog.total(), self._catalog.oldest()
            return ShardStats(
                count=self._index.count if readable else 0,
                mass=self._index.mass if readable else 0.0,
                inserted=total.received,
                stored=total.standby + total.active,
                evicted=total.evicted,
                drawn=self._drawn,
                fill_ratio=self._catalog.nbytes / self.capacity_bytes,
                nbytes=self._catalog.nbytes,
                newest_version=self._newest_version,
                version_min=0 if oldest is None else oldest.meta.version,
            )

    def totals(self) -> ColdCounts:
        """Sums of the accounts."""
        with self._lock:
            return self._catalog.total()

    def _check_priorities(self, priorities: Priorities) -> None:
        try:
            check_priorities(priorities)
        except ValueError as error:
            raise InvalidDataError(f"a release: {error}") from error
        if len(priorities) != self._terms.num_items:
            raise InvalidDataError(
                f"a release with {len(priorities)} priorities, not {self._terms.num_items}"
            )

    # Under the lock.

    def _make_index(self, rng: np.random.Generator) -> ItemIndex:
        """For as many chunks as fit. It never takes more memory than what it points at."""
        items = self._terms.num_items
        counted = self._replay.max_times_sampled is not None
        least = max(
            self._terms.fragment_bytes // _MIN_RATIO, ItemIndex.bytes_per_chunk(items, counted=counted), 1
        )
        capacity = self._replay.cold_capacity_bytes // self._replay.partitions
        return ItemIndex.configured(
            self._replay, max_chunks=max(2, -(-capacity // least)), items_per_chunk=items, rng=rng
        )

    def _is_crowded(self, oldest: Stored, nbytes: int) -> bool:
        too_many = self._catalog.next_chunk - oldest.chunk >= self._index.max_chunks
        return too_many or self._catalog.nbytes + nbytes > self.capacity_bytes

    def _is_too_old(self, oldest: Stored) -> bool:
        limit = self._replay.capacity_updates
        return limit is not None and self._newest_version - oldest.meta.version > limit

    def _evict(self, stored: Stored) -> None:
        self._index.remove(stored.chunk)
        self._catalog.evict(stored)
        self._reader.forget(stored.chunk)
        self._garbage.append(stored.chunk)

    def _release(self, owner: Incarnation) -> None:
        for stored in self._catalog.to_release(owner):
            drawable, _ = stored.meta.masks(self._terms.num_items)
            self._index.add(stored.chunk, drawable, stored.priorities, stored.meta.version)
            self._catalog.activate(stored)
            self._open_pending(stored)
            if not stored.pending:
                stored.priorities = None  # the index has them now
        if owner.gone and owner.last is not None and owner.last.active:
            self._open_pending(owner.last)

    def _open_pending(self, stored: Stored) -> None:
        """The last items of an active chunk become drawable, once it is settled what follows it."""
        owner = self._catalog.incarnations[stored.meta.sampler]
        if not stored.pending or not owner.follows(stored.meta.sequence):
            return
        _, pending = stored.meta.masks(self._terms.num_items)
        items = np.flatnonzero(pending).astype(np.int64)
        self._index.activate(
            stored.chunk, items, None if stored.priorities is None else stored.priorities[items]
        )
        stored.pending, stored.priorities = False, None

    def _newest_priorities(self, stored: Stored) -> Priorities:
        """Of an active chunk, those of items that are not drawable yet included."""
        newest = self._index.priorities_of(stored.chunk)
        if not stored.pending:
            return newest
        waiting = self._index.max_priority if stored.priorities is None else stored.priorities
        return np.where(self._index.drawable_of(stored.chunk), newest, waiting).astype(np.float32)

    def _write_accounts(self) -> None:
        for sampler in self._catalog.dirty:
            self._accounts.write(sampler, self._catalog.incarnations[sampler].counts())
        self._catalog.dirty.clear()

    def _needed(self, drawn: Drawn, followers: dict[int, int], sequence_length: int) -> list[int]:
        """Chunks to read: those drawn, and where an item reaches beyond its chunk the following ones."""
        needed = dict.fromkeys(int(chunk) for chunk in drawn.chunks)
        # The step after a sequence's last one may be what it bootstraps from.
        steps = self._terms.n_step if sequence_length <= 1 else sequence_length + 1
        reach = drawn.items // self._terms.num_lanes + steps - self._terms.num_steps
        for chunk, beyond in zip(drawn.chunks[reach > 0], reach[reach > 0], strict=True):
            for before, after in self._catalog.chain(int(chunk), -(-int(beyond) // self._terms.num_steps)):
                followers[before] = after
                needed[after] = None
        return list(needed)

    # Without the lock.

    def _fetch(self, chunks: list[int]) -> dict[int, Fragment]:
        """Read chunks; what is not there or damaged is lost. Raises StoreError."""
        read = self._reader.read(chunks)
        for chunk in read.missing:
            self._lose(chunk, damaged=False)
        for chunk, sentence in read.damaged:
            self._on_event("chunk_damaged", chunk=chunk, reason=sentence)
            self._lose(chunk, damaged=True)
        return read.fragments

    def _lose(self, chunk: int, *, damaged: bool) -> int:
        """Count a chunk as lost, unless it has left meanwhile; returns its transitions."""
        with self._lock:
            stored = self._catalog.stored.get(chunk)
            if stored is None:
                return 0
            self._index.remove(chunk)
            self._catalog.lose(stored, damaged=damaged)
            self._reader.forget(chunk)
            self._garbage.append(chunk)
            self._unreliable = self._unreliable or not damaged
            self._write_accounts()
        return stored.meta.num_transitions
