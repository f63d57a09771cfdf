"""Which items there are in a shard and how likely each is: the index, apart from the experience itself.

An item is a transition of a chunk: ``key = chunk * items_per_chunk + item``. Chunk numbers only rise; a chunk
lives in slot ``chunk % max_chunks``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.config.sections import ReplayConfig
from headrace.replay import kernels

Selector = Literal["uniform", "prioritized", "fifo", "lifo"]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]
_ROUNDS = 8  # of drawing again what had been drawn too often
_LEAST_FACTOR = 1e-12  # of freshness: rounding to 0 must not rule out what is old


@dataclass(frozen=True, slots=True)
class Drawn:
    """N items and the probability that each was drawn with, inside the shard."""

    keys: Int64s
    chunks: Int64s
    items: Int64s
    probabilities: Float64s
    versions: Int64s

    def where(self, mask: npt.NDArray[np.bool_]) -> Drawn:
        """Those that ``mask`` ``[N]`` names."""
        return Drawn(*(getattr(self, field.name)[mask] for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence[Drawn]) -> Drawn:
        """One after another; at least one part."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class PriorityOutcome:
    """What became of new priorities: ``ignored``: gone, ``refused``: NaN, infinite or negative."""

    applied: int = 0
    ignored: int = 0
    refused: int = 0


class ItemIndex:
    """Chunks' items and their priorities, of one shard. Not thread-safe.

    Invariants: an item that is not drawable, or whose priority is 0, is never drawn; the mass is the sum
    over drawable items of ``priority ** exponent`` times the freshness of their chunk's version.
    """

    def __init__(
        self,
        *,
        max_chunks: int,
        items_per_chunk: int,
        rng: np.random.Generator,
        selector: Selector = "uniform",
        priority_exponent: float = 1.0,
        freshness_half_life: float | None = None,
        freshness_floor: float = 0.0,
        max_times_sampled: int | None = None,
    ) -> None:
        """``freshness_half_life`` in versions; ValueError unless sizes are positive."""
        if max_chunks < 1 or items_per_chunk < 1:
            raise ValueError(f"an index of {max_chunks} chunks of {items_per_chunk} items")
        self._rng = rng
        self._selector = selector
        self._exponent = priority_exponent if selector == "prioritized" else 0.0
        self._half_life = freshness_half_life
        self._floor = freshness_floor
        self._max_times = max_times_sampled
        self.items_per_chunk = items_per_chunk
        self.max_chunks = max_chunks
        self._items = np.zeros((max_chunks, 2 * items_per_chunk))
        self._chunks = np.zeros(2 * max_chunks)
        self._factors = np.ones(max_chunks)
        self._drawable = np.zeros((max_chunks, items_per_chunk), np.bool_)
        self._times = (
            None if max_times_sampled is None else np.zeros((max_chunks, items_per_chunk), np.uint32)
        )
        self._chunk_of = np.full(max_chunks, -1, np.int64)
        self._versions = np.zeros(max_chunks, np.int64)
        self._counts = np.zeros(max_chunks, np.int64)
        self.newest_version = 0
        self.max_priority = 1.0

    @classmethod
    def configured(
        cls, replay: ReplayConfig, *, max_chunks: int, items_per_chunk: int, rng: np.random.Generator
    ) -> ItemIndex:
        """As the configuration's section says."""
        return cls(
            max_chunks=max_chunks,
            items_per_chunk=items_per_chunk,
            rng=rng,
            selector=replay.selector,
            priority_exponent=replay.priority_exponent,
            freshness_half_life=replay.freshness_half_life,
            freshness_floor=replay.freshness_floor,
            max_times_sampled=replay.max_times_sampled,
        )

    @staticmethod
    def bytes_per_chunk(items_per_chunk: int, *, counted: bool) -> int:
        """Bytes of index that one chunk takes; ``counted``: how often items were drawn is counted."""
        # A float64 tree over the items, a leaf and a parent over the chunks, four numbers a chunk.
        return 16 * items_per_chunk + 16 + items_per_chunk * (5 if counted else 1) + 4 * 8

    @property
    def count(self) -> int:
        """Drawable items."""
        return int(self._counts.sum())

    @property
    def oldest_version(self) -> int:
        """The least version number of the stored chunks; the newest one if there are none."""
        return int(self._versions.min(where=self._chunk_of >= 0, initial=self.newest_version))

    @property
    def mass(self) -> float:
        """Sum of all weights."""
        return float(self._chunks[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the index."""
        times = 0 if self._times is None else self._times.nbytes
        arrays = (self._items, self._chunks, self._factors, self._drawable, self._chunk_of, self._versions)
        return sum(array.nbytes for array in arrays) + self._counts.nbytes + times

    def __contains__(self, chunk: int) -> bool:
        return bool(self._chunk_of[chunk % self.max_chunks] == chunk)

    def free_chunk(self, least: int) -> int:
        """The least chunk number from ``least`` on whose slot is free. LookupError if none is."""
        free = np.flatnonzero(self._chunk_of < 0)
        if not len(free):
            raise LookupError(f"all {self.max_chunks} slots are in use")
        first = least % self.max_chunks
        ahead = free[np.searchsorted(free, first) % len(free)]
        return least + int(ahead - first) % self.max_chunks

    def lightest(self) -> int:
        """The stored chunk with the least mass, the oldest of equals. LookupError if none is stored."""
        stored = np.flatnonzero(self._chunk_of >= 0)
        if not len(stored):
            raise LookupError("no chunk is stored")
        masses = self._chunks[self.max_chunks :][stored]
        return int(self._chunk_of[stored[masses == masses.min()]].min())

    def add(
        self,
        chunk: int,
        drawable: npt.NDArray[np.bool_],
        priorities: npt.NDArray[np.floating] | None,
        version: int,
    ) -> None:
        """Enter a chunk, acted by version number ``version``. The slot's former chunk must be removed.

        ``drawable`` ``[items_per_chunk]``; ``priorities`` alike (None: the largest there has been).
        ValueError for a slot in use or bad priorities.
        """
        slot = chunk % self.max_chunks
        if self._chunk_of[slot] >= 0:
            raise ValueError(f"chunk {chunk} needs the slot of chunk {self._chunk_of[slot]}, which is in use")
        weights = self._weights(priorities if priorities is None else np.where(drawable, priorities, 0.0))
        self._chunk_of[slot] = chunk
        self._versions[slot] = version
        self.set_version(version)
        if self._half_life is not None:
            self._factors[slot] = self._freshness(self._versions[slot], self._half_life)
        self._drawable[slot] = drawable
        self._counts[slot] = np.count_nonzero(drawable)
        if self._times is not None:
            self._times[slot] = 0
        self._set_chunk(slot, np.where(drawable, weights, 0.0))

    def activate(self, chunk: int, items: Int64s, priorities: npt.NDArray[np.floating] | None) -> None:
        """Make items of a chunk drawable; ``priorities`` ``[len(items)]``, None: the largest so far.

        Nothing happens if the chunk is gone. ValueError for bad priorities, IndexError for bad items.
        """
        slot = chunk % self.max_chunks
        if self._chunk_of[slot] != chunk or not len(items):
            return
        items = np.array(items, np.int64)  # writable: see kernels
        if items.min() < 0:
            raise IndexError(f"item {items.min()}")
        weights = np.empty(len(items))
        weights[:] = self._weights(priorities)
        self._drawable[slot, items] = True
        self._counts[slot] = np.count_nonzero(self._drawable[slot])
        self._set_leaves(np.full(len(items), slot, np.int64), items, weights)

    def remove(self, chunk: int) -> int:
        """Let a chunk go; returns how many drawable items went with it."""
        slot = chunk % self.max_chunks
        if self._chunk_of[slot] != chunk:
            return 0
        count = int(self._counts[slot])
        self._chunk_of[slot] = -1
        self._drawable[slot] = False
        self._counts[slot] = 0
        self._set_chunk(slot, np.zeros(self.items_per_chunk))
        return count

    def priorities_of(self, chunk: int) -> npt.NDArray[np.float32]:
        """Priorities ``[items_per_chunk]`` now; 0 for what is not drawable. KeyError if it is gone."""
        slot = chunk % self.max_chunks
        if self._chunk_of[slot] != chunk:
            raise KeyError(chunk)
        weights = self._items[slot, self.items_per_chunk :]
        if self._exponent == 0.0:  # it leaves of a priority whether it is above 0
            return weights.astype(np.float32)
        return np.minimum(weights ** (1.0 / self._exponent), kernels.PRIORITY_MAX).astype(np.float32)

    def drawable_of(self, chunk: int) -> npt.NDArray[np.bool_]:
        """Mask ``[items_per_chunk]`` of what can be drawn. KeyError if the chunk is gone."""
        slot = chunk % self.max_chunks
        if self._chunk_of[slot] != chunk:
            raise KeyError(chunk)
        mask: npt.NDArray[np.bool_] = self._drawable[slot].copy()
        return mask

    def draw(self, num_items: int) -> Drawn:
        """Draw with replacement; fewer than ``num_items`` only where there are no more to be had."""
        if self._selector in ("fifo", "lifo"):
            slots, items = self._in_order(num_items)
            probabilities = np.full(len(slots), 1.0 / max(1, self.count))
            self._count_draws(slots, items)
        else:
            slots, items, probabilities = self._at_random(num_items)
        chunks = self._chunk_of[slots]
        return Drawn(
            chunks * self.items_per_chunk + items, chunks, items, probabilities, self._versions[slots]
        )

    def update(self, keys: Int64s, priorities: npt.NDArray[np.floating]) -> PriorityOutcome:
        """Set the priorities of ``keys`` ``[N]``; the last of equal keys wins."""
        keys, values = np.array(keys, np.int64), np.array(priorities, np.float64)  # writable: see kernels
        if keys.shape != values.shape:
            raise ValueError(f"{len(values)} priorities for {len(keys)} keys")
        counts = np.empty(3, np.int64)
        with np.errstate(invalid="ignore", over="ignore"):  # what is no priority is refused below
            weights = self._powers(values)
        largest = kernels.update_keys(
            self._items, self._chunks, self._factors, self._chunk_of, self._drawable,
            keys, values, weights, self._selector == "prioritized", counts,
        )  # fmt: skip
        self.max_priority = max(self.max_priority, largest)
        return PriorityOutcome(
            int(counts[kernels.APPLIED]), int(counts[kernels.IGNORED]), int(counts[kernels.REFUSED])
        )

    def set_version(self, number: int) -> None:
        """Say which version is the newest; what is older becomes less likely, if freshness matters."""
        if number <= self.newest_version:
            return
        self.newest_version = number
        if self._half_life is not None:
            self._factors[:] = self._freshness(self._versions, self._half_life)
            kernels.reweight(self._items, self._chunks, self._factors)

    def _freshness(self, versions: Int64s, half_life: float) -> Float64s:
        lag = np.maximum(0, self.newest_version - versions)
        return np.maximum(max(self._floor, _LEAST_FACTOR), 0.5 ** (lag / half_life))

    def _weights(self, priorities: npt.NDArray[np.floating] | None) -> Float64s:
        """Leaf weights ``[N]`` or ``[1]``."""
        if self._exponent == 0.0 and (priorities is None or self._selector != "prioritized"):
            return np.ones(1)
        if priorities is None:
            return np.array([self.max_priority**self._exponent])
        values = np.asarray(priorities, np.float64)
        check_priorities(values)
        self.max_priority = max(self.max_priority, float(values.max(initial=0.0)))
        return self._powers(values)

    def _powers(self, priorities: Float64s) -> Float64s:
        if self._exponent == 1.0:
            return priorities
        powers: Float64s = priorities**self._exponent
        if self._exponent == 0.0:
            powers[priorities == 0.0] = 0.0
        return powers

    def _at_random(self, num_items: int) -> tuple[Int64s, Int64s, Float64s]:
        parts: list[tuple[Int64s, Int64s, Float64s]] = []
        left = num_items
        for _ in range(_ROUNDS):
            if left <= 0 or self.mass <= 0.0:
                break
            slots, items = np.empty(left, np.int64), np.empty(left, np.int64)
            probabilities = np.empty(left)
            kernels.draw_leaves(
                self._items, self._chunks, self._factors, self._rng.random(left), slots, items, probabilities
            )
            kept = self._count_draws(slots, items)
            parts.append((slots[kept], items[kept], probabilities[kept]))
            left -= len(parts[-1][0])
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        slots, items, probabilities = (np.concatenate(column) for column in zip(*parts, strict=True))
        return slots, items, probabilities

    def _count_draws(self, slots: Int64s, items: Int64s) -> slice | npt.NDArray[np.bool_]:
        """Count how often items were drawn; returns which draws were still allowed. What is spent leaves."""
        if self._times is None or self._max_times is None:
            return slice(None)
        codes = slots * self.items_per_chunk + items
        order = np.argsort(codes, kind="stable")
        ranked = codes[order]
        first = np.searchsorted(ranked, ranked)  # rank inside a run of equal codes = place - first
        rank = np.empty(len(codes), np.int64)
        rank[order] = np.arange(len(codes)) - first
        kept = self._times[slots, items] + rank < self._max_times
        np.add.at(self._times, (slots[kept], items[kept]), 1)
        spent = self._times[slots, items] >= self._max_times
        if spent.any():
            self._drawable[slots[spent], items[spent]] = False
            for slot in np.unique(slots[spent]):
                self._counts[slot] = np.count_nonzero(self._drawable[slot])
            self._set_leaves(slots[spent], items[spent], np.zeros(int(spent.sum())))
        return np.asarray(kept, np.bool_)

    def _in_order(self, num_items: int) -> tuple[Int64s, Int64s]:
        """The oldest or newest drawable items, each once."""
        step = 1 if self._selector == "fifo" else -1
        live = np.flatnonzero(self._counts)
        live = live[np.argsort(self._chunk_of[live])][::step]
        live = live[: 1 + int(np.searchsorted(np.cumsum(self._counts[live]), num_items))]
        found = [np.flatnonzero(self._drawable[slot])[::step] for slot in live]
        slots = np.repeat(live, [len(items) for items in found])
        items = np.concatenate([np.empty(0, np.int64), *found])
        return slots[:num_items], items[:num_items]

    def _set_chunk(self, slot: int, weights: Float64s) -> None:
        kernels.set_chunk(self._items, self._chunks, self._factors, slot, weights)

    def _set_leaves(self, slots: Int64s, items: Int64s, weights: Float64s) -> None:
        kernels.set_leaves(self._items, self._chunks, self._factors, slots, items, weights)


def check_priorities(priorities: npt.NDArray[np.floating]) -> None:
    """ValueError unless all are finite and not negative."""
    if not ((priorities >= 0.0) & (priorities <= kernels.PRIORITY_MAX)).all():
        raise ValueError("priorities must be finite and not negative")
