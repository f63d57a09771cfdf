"""A ring of chunks in memory that is allocated once: the rows behind a hot shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.replay.layout import ChunkLayout
from headrace.replay.rows import Finals, RowBlock
from headrace.types import (
    ACTION,
    BOOTSTRAP_OBSERVATION,
    EPISODE_LENGTH,
    EPISODE_RETURN,
    FINAL_INDEX,
    FINAL_OBSERVATION,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    Fragment,
    FragmentId,
    PolicyVersion,
    as_columns,
    leaves_of,
)


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """What is known of a stored chunk besides its rows."""

    chunk: int
    fragment_id: FragmentId
    policy_version: PolicyVersion
    config_digest: str
    num_transitions: int
    produced_through: int
    episodes: Mapping[str, Array]  # [E] columns of the episodes that ended in it

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.episodes.values())


class ChunkRing:
    """Rows of ``max_chunks`` chunks of one layout. Not thread-safe.

    Chunk ``c`` lies in slot ``c % max_chunks``; numbers rise, with gaps where chunks leave out of order.
    """

    def __init__(self, layout: ChunkLayout, max_chunks: int) -> None:
        self.max_chunks = max_chunks
        self.layout = layout
        rows = (max_chunks * layout.num_steps, layout.num_lanes)
        slots = (max_chunks, layout.num_lanes)
        steps: dict[str, Array] = {
            name: np.zeros((*rows, *shape), dtype) for name, (shape, dtype) in layout.steps.items()
        }
        lanes: dict[str, Array] = {
            name: np.zeros((*slots, *shape), dtype) for name, (shape, dtype) in layout.lanes.items()
        }
        self._steps, self._lanes = steps, lanes
        self._records: list[ChunkRecord | None] = [None] * max_chunks
        self._finals: list[Finals | None] = [None] * max_chunks
        self._newest = -1  # the chunk written last
        self.block = RowBlock(
            num_steps=layout.num_steps,
            observation=leaves_of(OBSERVATION, steps),
            action=leaves_of(ACTION, steps),
            reward=steps[REWARD],
            terminated=steps[TERMINATED],
            truncated=steps[TRUNCATED],
            valid=np.zeros(rows, np.bool_),
            bootstrap=leaves_of(BOOTSTRAP_OBSERVATION, lanes),
            finals=self._finals,
            successor=np.full(max_chunks, -1, np.int64),
        )
        # All that is allocated here, and then what comes and goes with the chunks.
        self.nbytes = max_chunks * (layout.step_bytes + self.block.successor.itemsize)

    def write(self, chunk: int, fragment: Fragment, finals: Finals) -> None:
        """Store a fragment of this layout as chunk number ``chunk``, in a slot that is free."""
        slot, columns, block = chunk % self.max_chunks, fragment.columns, self.block
        rows = self._rows(slot)
        for name, array in self._steps.items():
            array[rows] = columns[name]
        for name, array in self._lanes.items():
            array[slot] = columns[name]
        block.valid[rows] = columns.get(VALID, True)
        record = ChunkRecord(
            chunk=chunk,
            fragment_id=fragment.id,
            policy_version=fragment.policy_version,
            config_digest=fragment.config_digest,
            num_transitions=fragment.num_transitions,
            produced_through=fragment.produced_through,
            episodes={name: np.array(columns[name]) for name in (EPISODE_RETURN, EPISODE_LENGTH)},
        )
        self._finals[slot], self._records[slot] = finals, record
        self.nbytes += self._bytes_with(record, finals)
        block.successor[slot] = -1
        before = self.record(self._newest)
        previous = FragmentId(fragment.id.sampler, fragment.id.sequence - 1)
        if before is not None and before.fragment_id == previous:
            block.successor[before.chunk % self.max_chunks] = slot
        self._newest = chunk

    def forget(self, chunk: int) -> None:
        """Let a chunk go; its rows are overwritten later. KeyError if it is gone already.

        Targets of the chunk before it, if that stays, end at its edge from now on.
        """
        slot, record, finals = self._found(chunk)
        self.nbytes -= self._bytes_with(record, finals)
        self._finals[slot] = self._records[slot] = None
        successor = self.block.successor
        successor[slot] = -1
        successor[successor == slot] = -1

    def record(self, chunk: int) -> ChunkRecord | None:
        """What is known of a chunk; None if it is gone."""
        record = self._records[chunk % self.max_chunks]
        return record if record is not None and record.chunk == chunk else None

    def fragment(self, chunk: int) -> Fragment:
        """The fragment again, copied, with the columns that replay keeps. KeyError if the chunk is gone."""
        slot, record, finals = self._found(chunk)
        rows = self._rows(slot)
        return Fragment(
            id=record.fragment_id,
            policy_version=record.policy_version,
            config_digest=record.config_digest,
            columns={
                **{name: array[rows].copy() for name, array in self._steps.items()},
                VALID: self.block.valid[rows].copy(),
                **{name: array[slot].copy() for name, array in self._lanes.items()},
                FINAL_INDEX: finals.index.astype(np.int32),
                **as_columns(FINAL_OBSERVATION, finals.leaves),
                **record.episodes,
            },
            num_transitions=record.num_transitions,
            produced_through=record.produced_through,
        )

    def _rows(self, slot: int) -> slice:
        return slice(slot * self.layout.num_steps, (slot + 1) * self.layout.num_steps)

    def _found(self, chunk: int) -> tuple[int, ChunkRecord, Finals]:
        slot, record = chunk % self.max_chunks, self.record(chunk)
        finals = self._finals[slot]
        if record is None or finals is None:
            raise KeyError(chunk)
        return slot, record, finals

    def _bytes_with(self, record: ChunkRecord, finals: Finals) -> int:
        return self.layout.record_bytes + record.nbytes + finals.nbytes
