"""A ring of chunks in memory that is allocated once: the rows behind a hot shard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.replay.rows import Finals, RowBlock, valid_of
from headrace.types import (
    ACTION,
    BOOTSTRAP_OBSERVATION,
    EPISODE_LENGTH,
    EPISODE_RETURN,
    FINAL_INDEX,
    FINAL_OBSERVATION,
    LANE_EPISODE,
    LANE_SEED,
    LANE_STEP,
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

_PROVENANCE = (LANE_SEED, LANE_EPISODE, LANE_STEP, EPISODE_RETURN, EPISODE_LENGTH)


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """What is known of a stored chunk besides its rows."""

    chunk: int
    fragment_id: FragmentId
    policy_version: PolicyVersion
    config_digest: str
    num_transitions: int
    produced_through: int
    small: dict[str, Array]  # provenance columns

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.small.values())


def row_bytes(fragment: Fragment) -> int:
    """Bytes that a chunk like ``fragment`` takes in a ring, without its final observations."""
    columns = fragment.columns
    rows = [*leaves_of(OBSERVATION, columns).values(), *leaves_of(ACTION, columns).values()]
    rows += leaves_of(BOOTSTRAP_OBSERVATION, columns).values()
    flags = 3 * columns[REWARD].size
    small = sum(columns[name].nbytes for name in _PROVENANCE)
    return sum(array.nbytes for array in rows) + columns[REWARD].nbytes + flags + small


class ChunkRing:
    """Rows of ``max_chunks`` chunks of one shape. Not thread-safe.

    Chunk ``c`` lies in slot ``c % max_chunks``; chunks come in order and leave oldest first.
    """

    def __init__(self, like: Fragment, max_chunks: int) -> None:
        self.max_chunks = max_chunks
        self._num_steps, self._num_lanes = like.num_steps, like.num_lanes
        rows = max_chunks * like.num_steps

        def column(array: Array) -> Array:
            return np.zeros((rows, *array.shape[1:]), array.dtype)

        columns = like.columns
        flags = (rows, like.num_lanes)
        bootstrap = leaves_of(BOOTSTRAP_OBSERVATION, columns)
        self._finals: list[Finals | None] = [None] * max_chunks
        self._records: list[ChunkRecord | None] = [None] * max_chunks
        self.block = RowBlock(
            num_steps=like.num_steps,
            observation={leaf: column(array) for leaf, array in leaves_of(OBSERVATION, columns).items()},
            action={leaf: column(array) for leaf, array in leaves_of(ACTION, columns).items()},
            reward=np.zeros(flags, np.float32),
            terminated=np.zeros(flags, np.bool_),
            truncated=np.zeros(flags, np.bool_),
            valid=np.zeros(flags, np.bool_),
            bootstrap={k: np.zeros((max_chunks, *v.shape), v.dtype) for k, v in bootstrap.items()},
            finals=self._finals,
            successor=np.full(max_chunks, -1, np.int64),
        )
        self.extra_bytes = 0  # of final observations and provenance

    def write(self, chunk: int, fragment: Fragment) -> None:
        """Store a fragment as chunk number ``chunk``. ValueError if its shape is another one."""
        if (fragment.num_steps, fragment.num_lanes) != (self._num_steps, self._num_lanes):
            raise ValueError(
                f"fragment {fragment.id} has {fragment.num_steps} steps of {fragment.num_lanes} lanes; "
                f"this ring's have {self._num_steps} of {self._num_lanes}"
            )
        slot, columns, block = chunk % self.max_chunks, fragment.columns, self.block
        rows = slice(slot * self._num_steps, (slot + 1) * self._num_steps)
        for leaf, array in leaves_of(OBSERVATION, columns).items():
            block.observation[leaf][rows] = array
        for leaf, array in leaves_of(ACTION, columns).items():
            block.action[leaf][rows] = array
        for leaf, array in leaves_of(BOOTSTRAP_OBSERVATION, columns).items():
            block.bootstrap[leaf][slot] = array
        block.reward[rows] = columns[REWARD]
        block.terminated[rows] = columns[TERMINATED]
        block.truncated[rows] = columns[TRUNCATED]
        block.valid[rows] = valid_of(fragment)
        finals = Finals.of(fragment)
        record = ChunkRecord(
            chunk=chunk,
            fragment_id=fragment.id,
            policy_version=fragment.policy_version,
            config_digest=fragment.config_digest,
            num_transitions=fragment.num_transitions,
            produced_through=fragment.produced_through,
            small={name: np.array(columns[name]) for name in _PROVENANCE},
        )
        self._finals[slot], self._records[slot] = finals, record
        self.extra_bytes += finals.nbytes + record.nbytes
        block.successor[slot] = -1
        before = (chunk - 1) % self.max_chunks
        previous = self._records[before]
        if self.max_chunks > 1 and previous is not None and previous.chunk == chunk - 1:
            block.successor[before] = slot

    def forget(self, chunk: int) -> None:
        """Let a chunk go; its rows are overwritten later."""
        slot = chunk % self.max_chunks
        finals, record = self._finals[slot], self._records[slot]
        if record is None or record.chunk != chunk or finals is None:
            return
        self.extra_bytes -= finals.nbytes + record.nbytes
        self._finals[slot] = self._records[slot] = None
        self.block.successor[slot] = -1

    def record(self, chunk: int) -> ChunkRecord | None:
        """What is known of a chunk; None if it is gone."""
        record = self._records[chunk % self.max_chunks]
        return record if record is not None and record.chunk == chunk else None

    def fragment(self, chunk: int) -> Fragment:
        """The fragment again, copied, with the columns that replay keeps. KeyError if the chunk is gone."""
        record, slot, block = self.record(chunk), chunk % self.max_chunks, self.block
        finals = self._finals[slot]
        if record is None or finals is None:
            raise KeyError(chunk)
        rows = slice(slot * self._num_steps, (slot + 1) * self._num_steps)
        columns: dict[str, Array] = {
            **as_columns(
                OBSERVATION, {leaf: array[rows].copy() for leaf, array in block.observation.items()}
            ),
            **as_columns(ACTION, {leaf: array[rows].copy() for leaf, array in block.action.items()}),
            REWARD: block.reward[rows].copy(),
            TERMINATED: block.terminated[rows].copy(),
            TRUNCATED: block.truncated[rows].copy(),
            VALID: block.valid[rows].copy(),
            **as_columns(
                BOOTSTRAP_OBSERVATION, {leaf: a[slot].copy() for leaf, a in block.bootstrap.items()}
            ),
            FINAL_INDEX: finals.index.astype(np.int32),
            **as_columns(FINAL_OBSERVATION, finals.leaves),
            **record.small,
        }
        return Fragment(
            id=record.fragment_id,
            policy_version=record.policy_version,
            config_digest=record.config_digest,
            columns=columns,
            num_transitions=record.num_transitions,
            produced_through=record.produced_through,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        block = self.block
        columns = (*block.observation.values(), *block.action.values(), *block.bootstrap.values())
        flags = block.terminated.nbytes + block.truncated.nbytes + block.valid.nbytes
        return sum(array.nbytes for array in columns) + block.reward.nbytes + flags + self.extra_bytes
