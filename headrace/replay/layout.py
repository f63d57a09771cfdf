"""What the chunks of a shard look like, learnt from its first fragment, and what one of them costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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
    Fragment,
)

STEP_COLUMNS = (OBSERVATION, ACTION, REWARD, TERMINATED, TRUNCATED)  # [T, B, ...]; VALID besides
LANE_COLUMNS = (BOOTSTRAP_OBSERVATION, LANE_SEED, LANE_EPISODE, LANE_STEP)  # [B, ...]
END_COLUMNS = (FINAL_INDEX, FINAL_OBSERVATION, EPISODE_RETURN, EPISODE_LENGTH)  # [K, ...] or [E]

_RECORD_BYTES = 1024  # Python's own, of what is kept of a chunk besides arrays
_ARRAY_BYTES = 160  # Python's own, of a small array
_ENDS_MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """Columns that replay keeps of a fragment, as shape behind ``[T, B]``, ``[B]`` or ``[K]``, and dtype."""

    num_steps: int
    num_lanes: int
    steps: Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]]
    lanes: Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]]
    ends: Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]]
    ends_reckoned: int

    @classmethod
    def of(cls, fragment: Fragment) -> ChunkLayout:
        """Of chunks like ``fragment``.

        ``ends_reckoned`` is how many ends there is room for in a chunk: a quarter more than in this one, and
        at least one a lane. (Episodes longer than a fragment end at most once in it; shorter ones show here.)
        """
        columns = fragment.columns
        ends = max(len(columns[FINAL_INDEX]), len(columns[EPISODE_RETURN]))
        return cls(
            num_steps=fragment.num_steps,
            num_lanes=fragment.num_lanes,
            steps={n: (a.shape[2:], a.dtype) for n, a in columns.items() if _in(n, STEP_COLUMNS)},
            lanes={n: (a.shape[1:], a.dtype) for n, a in columns.items() if _in(n, LANE_COLUMNS)},
            ends={n: (a.shape[1:], a.dtype) for n, a in columns.items() if _in(n, END_COLUMNS)},
            ends_reckoned=max(fragment.num_lanes, int(_ENDS_MARGIN * ends)),
        )

    def check(self, fragment: Fragment) -> None:
        """ValueError if a fragment doesn't look like this: another T, B, shape, dtype or set of columns."""
        other = ChunkLayout.of(fragment)
        for mine, its in (
            ((self.num_steps, self.num_lanes), (other.num_steps, other.num_lanes)),
            (self.steps, other.steps),
            (self.lanes, other.lanes),
            (self.ends, other.ends),
        ):
            if mine != its:
                raise ValueError(f"fragment {fragment.id} has {its}; the others here have {mine}")

    @property
    def step_bytes(self) -> int:
        """Of all steps and lanes of a chunk: what is the same for every chunk."""
        rows = self.num_steps * self.num_lanes * (_row_bytes(self.steps) + 1)  # and VALID
        return rows + self.num_lanes * _row_bytes(self.lanes)

    @property
    def record_bytes(self) -> int:
        """Of Python's objects around a stored chunk, about."""
        return _RECORD_BYTES + _ARRAY_BYTES * len(self.ends)

    @property
    def chunk_bytes(self) -> int:
        """To reckon for a chunk, its ends included."""
        ends = self.ends_reckoned * (_row_bytes(self.ends) + 4)  # the index takes 8 here, not 4
        return self.step_bytes + self.record_bytes + ends


def _in(name: str, families: tuple[str, ...]) -> bool:
    return any(name == family or name.startswith(family + "/") for family in families)


def _row_bytes(columns: Mapping[str, tuple[tuple[int, ...], np.dtype[np.generic]]]) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in columns.values())
