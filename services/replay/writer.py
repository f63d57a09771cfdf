"""Puts fragments into Redis, several a round trip, and into the shard once they are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.events import OnEvent, no_event
from headrace.types import PRIORITY, Fragment, SamplerIdentity
from services.replay.catalog import ENTRY_BYTES, Priorities
from services.replay.chunks import meta_of, pack_chunk, pack_meta
from services.replay.cold_shard import ColdShard
from services.replay.store import ChunkStore

WRITE_BYTES = 4 * 2**20
WRITE_CHUNKS = 512
"""Of fragments in one round trip, about."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A fragment that has arrived and is not stored; ``fragment`` None: it was refused.

    ``chunk``: its number from the first attempt on, so that a second one writes the same again.
    """

    sampler: SamplerIdentity
    sequence: int
    nbytes: int
    token: int
    fragment: Fragment | None
    chunk: int = -1


class ChunkWriter:
    """One thread's. Whatever fails can be done again, with the same result."""

    def __init__(
        self, shard: ColdShard, store: ChunkStore, *, n_step: int, on_event: OnEvent = no_event
    ) -> None:
        self._shard = shard
        self._store = store
        self._n_step = n_step
        self._on_event = on_event

    def come_back(self) -> bool:
        """After a failure: ask whether Redis takes writes, and find out what it has lost meanwhile.

        Whether there had been one. Raises StoreError while there is.
        """
        if not self._store.reason and not self._shard.unreliable:
            return False
        self._store.probe()
        lost = self._shard.reconcile()
        if lost:
            self._on_event("cold_tier_lost", reason="redis_lost", transitions=lost)
        return True

    def write(self, batch: Sequence[Waiting]) -> int:
        """Store what a batch holds; returns bytes stored. Raises StoreError: then nothing of it counts."""
        good = [(one, one.fragment) for one in batch if one.fragment is not None]
        values = [pack_chunk(fragment) for _, fragment in good]
        metas = [
            meta_of(fragment, len(value), self._n_step)
            for (_, fragment), value in zip(good, values, strict=True)
        ]
        nbytes = sum(map(len, values))
        garbage = self._shard.make_room(nbytes + ENTRY_BYTES * len(values))
        if garbage:
            self._store.delete(garbage)
            self._shard.deleted(garbage)
        if not good:
            return 0
        for one, _ in good:
            if one.chunk < 0:
                one.chunk = self._shard.claim()
        chunks = [one.chunk for one, _ in good]
        self._store.write(list(zip(chunks, values, map(pack_meta, metas), strict=True)))
        self._shard.commit(
            [
                (chunk, meta, _priorities_of(fragment))
                for chunk, meta, (_, fragment) in zip(chunks, metas, good, strict=True)
            ]
        )
        return nbytes


def _priorities_of(fragment: Fragment) -> Priorities | None:
    column = fragment.columns.get(PRIORITY)
    return None if column is None else column.reshape(-1).copy()
