"""The hot tier of one sampler: its newest experience, drawn from by learners while it is written."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.config.sections import ReplayConfig
from headrace.replay import kernels
from headrace.replay.items import ItemIndex, PriorityOutcome, check_priorities
from headrace.replay.layout import ChunkLayout
from headrace.replay.ring import ChunkRing
from headrace.replay.rows import Finals, pending_of, valid_of
from headrace.types import PRIORITY, Array, Fragment, FragmentId, Sample


@dataclass(frozen=True, slots=True)
class Evicted:
    """A chunk that was let go, with the newest priorities ``[T, B]`` of its transitions."""

    chunk: int
    fragment_id: FragmentId
    num_transitions: int
    priorities: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ShardStats:
    """A shard at a glance. Counts are transitions; ``count`` and ``mass`` of what can be drawn now.

    ``inserted == stored + evicted``; ``drawn`` counts draws. ``version_min`` is the oldest version that acted
    in what is stored.
    """

    count: int = 0
    mass: float = 0.0
    inserted: int = 0
    stored: int = 0
    evicted: int = 0
    drawn: int = 0
    fill_ratio: float = 0.0
    nbytes: int = 0
    newest_version: int = 0
    version_min: int = 0


class HotShard:
    """Chunks of one sampler incarnation within a byte budget: the remover says which leave. Thread-safe.

    Invariants: a chunk is immutable once it is in; a transition is drawable once the rows that its target
    needs are there (or :meth:`flush` said that none will come); what is drawn is copied out under the lock.
    ``_lock`` guards everything.
    """

    def __init__(self, replay: ReplayConfig, *, n_step: int, gamma: float, rng: np.random.Generator) -> None:
        kernels.warm_up()
        self._replay = replay
        self._n_step = n_step
        self._gamma = gamma
        self._rng = rng
        self._lock = threading.Lock()
        self._ring: ChunkRing | None = None
        self._index: ItemIndex | None = None
        self._chunks: deque[int] = deque()  # stored, oldest first
        self._next_chunk = 0
        self._pending: tuple[int, npt.NDArray[np.int64], npt.NDArray[np.float32] | None] | None = None
        self._inserted = self._evicted = self._drawn = self._newest_version = 0

    def insert(self, fragment: Fragment, priorities: npt.NDArray[np.float32] | None = None) -> list[Evicted]:
        """Store a fragment; returns what had to go. ``priorities`` ``[T, B]``; None: the largest so far.

        ValueError for a shape that doesn't fit, for truncated steps without a final observation, and for
        priorities of valid steps that are NaN, infinite or negative; then nothing has changed.
        """
        finals, valid = Finals.of(fragment), valid_of(fragment)
        flat = None
        if priorities is not None:
            if priorities.shape != valid.shape:
                raise ValueError(f"priorities {priorities.shape} for steps {valid.shape}")
            flat = np.where(valid, priorities, np.float32(0)).astype(np.float32).reshape(-1)
            check_priorities(flat)
        with self._lock:
            ring, index = self._stores(fragment)
            ring.layout.check(fragment)
            evicted = self._make_room(ring, index)
            chunk = index.free_chunk(self._next_chunk)
            ring.write(chunk, fragment, finals)
            pending = pending_of(fragment, self._n_step)
            drawable = (valid & ~pending).reshape(-1)
            self._activate_pending(index)
            index.add(chunk, drawable, flat, fragment.policy_version.number)
            waiting = np.flatnonzero(pending)
            self._pending = (chunk, waiting, None if flat is None else flat[waiting])
            self._chunks.append(chunk)
            self._next_chunk = chunk + 1
            self._inserted += fragment.num_transitions
            self._newest_version = max(self._newest_version, fragment.policy_version.number)
        return evicted

    def flush(self) -> None:
        """No fragment follows: the last transitions are cut at the edge and become drawable."""
        with self._lock:
            if self._index is not None:
                self._activate_pending(self._index)

    def sample(self, num_items: int, sequence_length: int = 1) -> Sample | None:
        """Draw with replacement; None if there is nothing to draw. Fewer items if there are no more.

        With a ``sequence_length`` above 1 each item comes with the steps that follow it: see
        :meth:`headrace.replay.rows.RowBlock.gather_sequences`.
        """
        with self._lock:
            if self._ring is None or self._index is None or self._index.mass <= 0.0:
                return None
            drawn = self._index.draw(num_items)
            if not len(drawn.keys):
                return None
            self._drawn += len(drawn.keys)
            columns = self._ring.block.columns_of(
                drawn.chunks % self._ring.max_chunks,
                drawn.items,
                sequence_length=sequence_length,
                n_step=self._n_step,
                gamma=self._gamma,
            )
        return Sample(drawn.keys, drawn.probabilities, drawn.versions, columns)

    def update_priorities(
        self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating]
    ) -> PriorityOutcome:
        """Set priorities ``[N]``; what is gone is ignored, what is no priority is refused."""
        with self._lock:
            if self._index is None:
                return PriorityOutcome(ignored=len(keys))
            return self._index.update(keys, priorities)

    def set_version(self, number: int) -> None:
        """Say which policy version is the newest, for freshness."""
        with self._lock:
            self._newest_version = max(self._newest_version, number)
            if self._index is not None:
                self._index.set_version(number)

    def next_stored(self, chunk: int) -> int | None:
        """The first stored chunk from number ``chunk`` on, where the oldest leave; None if there is none."""
        with self._lock:
            if not self._chunks or self._chunks[-1] < chunk:
                return None
            return max(chunk, self._chunks[0])

    def fragment(self, chunk: int) -> Fragment:
        """A stored chunk as a fragment, with its priorities in a column. KeyError if it is gone."""
        with self._lock:
            if self._ring is None or self._index is None:
                raise KeyError(chunk)
            fragment = self._ring.fragment(chunk)
            priorities = self._priorities(chunk, fragment.num_steps)
        columns: dict[str, Array] = {**fragment.columns, PRIORITY: priorities}
        return Fragment(
            id=fragment.id,
            policy_version=fragment.policy_version,
            config_digest=fragment.config_digest,
            columns=columns,
            num_transitions=fragment.num_transitions,
            produced_through=fragment.produced_through,
        )

    def stats(self) -> ShardStats:
        """How it stands."""
        with self._lock:
            if self._ring is None or self._index is None:
                return ShardStats()
            used = self._ring.nbytes + self._index.nbytes
            return ShardStats(
                count=self._index.count,
                mass=self._index.mass,
                inserted=self._inserted,
                stored=self._inserted - self._evicted,
                evicted=self._evicted,
                drawn=self._drawn,
                fill_ratio=len(self._chunks) / self._ring.max_chunks,
                nbytes=used,
                newest_version=self._newest_version,
                version_min=self._index.oldest_version,
            )

    def _stores(self, like: Fragment) -> tuple[ChunkRing, ItemIndex]:
        """Ring and index, sized by the first fragment to come."""
        if self._ring is None or self._index is None:
            if self._n_step > like.num_steps:
                raise ValueError(f"{self._n_step} steps reach past the next fragment of {like.num_steps}")
            max_chunks = max(1, self._replay.hot_capacity_bytes // bytes_per_chunk(self._replay, like))
            self._ring = ChunkRing(ChunkLayout.of(like), max_chunks)
            self._index = ItemIndex.configured(
                self._replay,
                max_chunks=max_chunks,
                items_per_chunk=like.num_steps * like.num_lanes,
                rng=self._rng,
            )
            self._index.set_version(self._newest_version)
        return self._ring, self._index

    def _make_room(self, ring: ChunkRing, index: ItemIndex) -> list[Evicted]:
        evicted = []
        while self._chunks and (
            len(self._chunks) >= ring.max_chunks
            or ring.nbytes + index.nbytes > self._replay.hot_capacity_bytes
        ):
            chunk = self._next_to_leave(index)
            record = ring.record(chunk)
            if record is None:
                raise LookupError(f"chunk {chunk} has no record")
            priorities = self._priorities(chunk, ring.block.num_steps)
            evicted.append(Evicted(chunk, record.fragment_id, record.num_transitions, priorities))
            if self._pending is not None and self._pending[0] == chunk:
                self._pending = None
            self._chunks.remove(chunk)
            index.remove(chunk)
            ring.forget(chunk)
            self._evicted += record.num_transitions
        return evicted

    def _next_to_leave(self, index: ItemIndex) -> int:
        match self._replay.remover:
            case "fifo":
                return self._chunks[0]
            case "lifo":
                return self._chunks[-1]
            case "uniform":
                return self._chunks[int(self._rng.integers(len(self._chunks)))]
            case "prioritized":
                return index.lightest()

    def _activate_pending(self, index: ItemIndex) -> None:
        """The newest chunk's last transitions become drawable: their rows are there, or never will be."""
        if self._pending is not None:
            index.activate(*self._pending)
            self._pending = None

    def _priorities(self, chunk: int, num_steps: int) -> npt.NDArray[np.float32]:
        """``[T, B]``, what is still pending included."""
        if self._index is None:
            raise KeyError(chunk)
        priorities = self._index.priorities_of(chunk)
        if self._pending is not None and self._pending[0] == chunk:
            _, items, waiting = self._pending
            priorities[items] = self._index.max_priority if waiting is None else waiting
        return priorities.reshape(num_steps, -1)


def bytes_per_chunk(replay: ReplayConfig, like: Fragment) -> int:
    """Bytes of rows and index to reckon for one chunk; a shard has room for as many as its bytes hold.

    The first fragment, ``like``, stands for all that come: see :class:`ChunkLayout`.
    """
    counted = replay.max_times_sampled is not None
    index = ItemIndex.bytes_per_chunk(like.num_steps * like.num_lanes, counted=counted)
    return index + ChunkLayout.of(like).chunk_bytes
