"""From numbers of chunks to experience: read in bulk, checked, decoded, and gathered into items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.errors import CodecError
from headrace.replay.items import Drawn
from headrace.replay.rows import RowBlock
from headrace.types import Array, Fragment
from services.replay.cache import FragmentCache
from services.replay.chunks import unpack_chunk, unpacked_bytes
from services.replay.store import ChunkStore

CACHE_BYTES = 64 * 2**20
_MAX_FRAGMENT_FACTOR = 4  # a fragment whose every step ends an episode carries each observation twice


@dataclass(frozen=True, slots=True)
class ColdTerms:
    """Shape and targets: T x B items a chunk, and what an item is when it is drawn."""

    num_steps: int
    num_lanes: int
    fragment_bytes: int
    n_step: int
    gamma: float

    @property
    def num_items(self) -> int:
        """Items of a chunk."""
        return self.num_steps * self.num_lanes


@dataclass(slots=True)
class Read:
    """Chunks by number; those that Redis does not have; those that are not what was stored, and why."""

    fragments: dict[int, Fragment] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    damaged: list[tuple[int, str]] = field(default_factory=list)


class ChunkReader:
    """Reads chunks of one partition through a cache of decoded ones. Thread-safe."""

    def __init__(self, store: ChunkStore, terms: ColdTerms, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._store = store
        self._terms = terms
        self._cache = FragmentCache(cache_bytes)

    def forget(self, chunk: int) -> None:
        """A chunk has left."""
        self._cache.forget(chunk)

    def read(self, chunks: Sequence[int]) -> Read:
        """All of ``chunks``, one way or the other. Raises StoreError."""
        read = Read(self._cache.take(chunks))
        wanted = [chunk for chunk in chunks if chunk not in read.fragments]
        if not wanted:
            return read
        for chunk, value in zip(wanted, self._store.read(wanted), strict=True):
            if value is None:
                read.missing.append(chunk)
                continue
            try:
                fragment = unpack_chunk(value, _MAX_FRAGMENT_FACTOR * self._terms.fragment_bytes)
            except CodecError as error:
                read.damaged.append((chunk, str(error)))
                continue
            read.fragments[chunk] = fragment
            self._cache.put(chunk, fragment, unpacked_bytes(value))
        return read

    def gather(
        self,
        drawn: Drawn,
        fragments: Mapping[int, Fragment],
        followers: Mapping[int, int],
        sequence_length: int = 1,
    ) -> dict[str, Array]:
        """Columns ``[N, ...]`` of what was drawn. ``followers``: the chunk that follows another in time."""
        place = {chunk: index for index, chunk in enumerate(fragments)}
        successor = np.array([place.get(followers.get(chunk, -1), -1) for chunk in place], np.int64)
        block = RowBlock.stack(list(fragments.values()), successor)
        slots = np.array([place[chunk] for chunk in drawn.chunks.tolist()], np.int64)
        return block.columns_of(
            slots,
            drawn.items,
            sequence_length=sequence_length,
            n_step=self._terms.n_step,
            gamma=self._terms.gamma,
        )
