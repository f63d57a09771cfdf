"""What the chunks of a shard look like, learnt from its first fragment, and what one of them costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.types import (
    ACTION,
    BOOTSTRAP_OBSERVATION,
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

_EPISODE = EPISODE_RETURN.partition("/")[0]  # head of all that is said of ended episodes
_STEP_COLUMNS = frozenset({OBSERVATION, ACTION, REWARD, TERMINATED, TRUNCATED})  # [T, B, ...]
_LANE_COLUMNS = frozenset({BOOTSTRAP_OBSERVATION, LANE_SEED, LANE_EPISODE, LANE_STEP})  # [B, ...]
_END_COLUMNS = frozenset({FINAL_INDEX, FINAL_OBSERVATION, _EPISODE})  # [K, ...] or [E]
_COLUMNS = ((_STEP_COLUMNS, 2), (_LANE_COLUMNS, 1), (_END_COLUMNS, 1))  # and their leading axes

_RECORD_BYTES = 832  # Python's own, of what is kept of a chunk besides arrays
_ARRAY_BYTES = 128  # Python's own, of a small array
_ENDS_MARGIN = 1.25


Shape = tuple[tuple[int, ...], np.dtype[np.generic]]
"""Of a column without its leading axes, and its dtype."""


@dataclass(frozen=True, slots=True)
class ChunkLayout:
    """Columns that replay keeps of a fragment, besides ``valid``: by steps, by lanes and by ends."""

    num_steps: int
    num_lanes: int
    steps: Mapping[str, Shape]
    lanes: Mapping[str, Shape]
    ends: Mapping[str, Shape]
    ends_reckoned: int
    names: frozenset[str]  # of all columns, kept or not

    @classmethod
    def of(cls, fragment: Fragment) -> ChunkLayout:
        """Of chunks like ``fragment``.

        ``ends_reckoned`` is how many ends there is room for in a chunk: a quarter more than in this one, and
        at least one a lane. (Episodes longer than a fragment end at most once in it; shorter ones show here.)
        """
        columns = fragment.columns
        steps, lanes, ends = (
            {name: (array.shape[axes:], array.dtype) for name, array in columns.items() if _in(name, heads)}
            for heads, axes in _COLUMNS
        )
        num_ends = max(len(columns[FINAL_INDEX]), len(columns[EPISODE_RETURN]))
        return cls(
            num_steps=fragment.num_steps,
            num_lanes=fragment.num_lanes,
            steps=steps,
            lanes=lanes,
            ends=ends,
            ends_reckoned=max(fragment.num_lanes, int(_ENDS_MARGIN * num_ends)),
            names=frozenset(columns),
        )

    def check(self, fragment: Fragment) -> None:
        """ValueError if a fragment doesn't look like this: another T, B, shape, dtype or set of columns."""
        columns, size = fragment.columns, (self.num_steps, self.num_lanes)
        if columns.keys() != self.names:
            self._check_names(fragment)
        for leading, shapes in ((size, self.steps), (size[1:], self.lanes), (None, self.ends)):
            for name, (shape, dtype) in shapes.items():
                array = columns[name]
                expected = (array.shape[:1] if leading is None else leading) + shape
                if array.shape != expected or array.dtype != dtype:
                    raise ValueError(
                        f"{name} of fragment {fragment.id} is {array.dtype} {array.shape}; "
                        f"here it is {dtype} {expected}"
                    )

    def _check_names(self, fragment: Fragment) -> None:
        heads = _STEP_COLUMNS | _LANE_COLUMNS | _END_COLUMNS
        differing = {name for name in self.names ^ fragment.columns.keys() if _in(name, heads)}
        if differing:
            raise ValueError(f"fragment {fragment.id} and the others here differ in {sorted(differing)}")

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
        """To reckon for a chunk in a ring, its ends included."""
        ends = self.ends_reckoned * (_row_bytes(self.ends) + 4)  # the index takes 8 here, not 4
        return self.step_bytes + 8 + self.record_bytes + ends  # 8: its successor


def _in(name: str, heads: frozenset[str]) -> bool:
    return name.partition("/")[0] in heads


def _row_bytes(columns: Mapping[str, Shape]) -> int:
    return sum(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in columns.values())
