"""The experience itself: rows of steps, chunk after chunk, and how an item is read from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt

from headrace.replay import kernels
from headrace.types import (
    ACTION,
    BOOTSTRAP_OBSERVATION,
    DISCOUNT,
    FINAL_INDEX,
    FINAL_OBSERVATION,
    N_STEP_RETURN,
    NEXT_OBSERVATION,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    Fragment,
    as_columns,
    empty_valid_mask,
    leaves_of,
    names_of,
)

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Finals:
    """Last observations of a chunk's truncated episodes: ``index`` ``[K]`` is t * B + lane."""

    index: Int64s  # ascending
    leaves: Mapping[str, Array]  # [K, ...] each

    @classmethod
    def of(cls, fragment: Fragment) -> Finals:
        """Those that a target bootstraps from: a terminated episode has no use for its last observation."""
        columns = fragment.columns
        index = np.asarray(columns[FINAL_INDEX], np.int64)
        kept = columns[TRUNCATED].reshape(-1)[index] & ~columns[TERMINATED].reshape(-1)[index]
        leaves = leaves_of(FINAL_OBSERVATION, columns)
        return cls(index[kept], {leaf: array[kept] for leaf, array in leaves.items()})

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.index.nbytes + sum(array.nbytes for array in self.leaves.values())


class _LazyFinals(Sequence[Finals]):
    """Those of many fragments, of which hardly any are asked for."""

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        self._fragments = fragments

    def __len__(self) -> int:
        return len(self._fragments)

    @overload
    def __getitem__(self, index: int) -> Finals: ...

    @overload
    def __getitem__(self, index: slice) -> list[Finals]: ...

    def __getitem__(self, index: int | slice) -> Finals | list[Finals]:
        if isinstance(index, slice):
            return [Finals.of(fragment) for fragment in self._fragments[index]]
        return Finals.of(self._fragments[index])


@dataclass(frozen=True, slots=True)
class RowBlock:
    """C chunks of T steps of B lanes, to read items from.

    ``successor`` ``[C]`` is the place of the chunk that follows in time, -1: none. Columns of steps are
    ``[C * T, B, ...]``, ``bootstrap`` leaves ``[C, B, ...]``, ``finals`` one a chunk.
    """

    num_steps: int
    observation: Mapping[str, Array]
    action: Mapping[str, Array]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    valid: npt.NDArray[np.bool_]
    bootstrap: Mapping[str, Array]
    finals: Sequence[Finals | None]
    successor: Int64s

    @classmethod
    def stack(cls, fragments: Sequence[Fragment], successor: Int64s) -> RowBlock:
        """Fragments of the same shape, one after another."""

        def joined(name: str) -> Array:
            return np.concatenate([fragment.columns[name] for fragment in fragments])

        def joined_leaves(prefix: str) -> dict[str, Array]:
            return {leaf: joined(name) for leaf, name in names_of(prefix, fragments[0].columns).items()}

        bootstrap = {
            leaf: np.stack([fragment.columns[name] for fragment in fragments])
            for leaf, name in names_of(BOOTSTRAP_OBSERVATION, fragments[0].columns).items()
        }
        return cls(
            num_steps=fragments[0].num_steps,
            observation=joined_leaves(OBSERVATION),
            action=joined_leaves(ACTION),
            reward=joined(REWARD),
            terminated=joined(TERMINATED),
            truncated=joined(TRUNCATED),
            valid=np.concatenate([valid_of(fragment) for fragment in fragments]),
            bootstrap=bootstrap,
            finals=_LazyFinals(fragments),
            successor=successor,
        )

    def gather(self, slots: Int64s, items: Int64s, *, n_step: int, gamma: float) -> dict[str, Array]:
        """Columns ``[N, ...]`` of the items ``items`` (t * B + lane) of the chunks in ``slots``.

        observation, action, n_step_return, discount and next_observation; see :mod:`headrace.types`.
        """
        num_lanes, count = self.reward.shape[1], len(slots)
        steps, lanes = np.divmod(items, num_lanes)
        rows = slots * self.num_steps + steps
        returns, discounts = np.empty(count, np.float32), np.empty(count, np.float32)
        kinds, wheres = np.empty(count, np.int8), np.empty(count, np.int64)
        kernels.walk_n_steps(
            self.reward, self.terminated, self.truncated, self.valid, self.successor, self.num_steps,
            rows, lanes, n_step, gamma, returns, discounts, kinds, wheres,
        )  # fmt: skip
        following = self._following(kinds, wheres, lanes)
        return {
            **as_columns(
                OBSERVATION, {leaf: column[rows, lanes] for leaf, column in self.observation.items()}
            ),
            **as_columns(ACTION, {leaf: column[rows, lanes] for leaf, column in self.action.items()}),
            N_STEP_RETURN: returns,
            DISCOUNT: discounts,
            **as_columns(NEXT_OBSERVATION, following),
        }

    def _following(self, kinds: npt.NDArray[np.int8], wheres: Int64s, lanes: Int64s) -> dict[str, Array]:
        """The observations ``[N, ...]`` that the items' targets bootstrap from."""
        edge = np.flatnonzero(kinds == kernels.FROM_EDGE)
        final = np.flatnonzero(kinds == kernels.FROM_FINAL)
        rows = wheres if not len(edge) else np.where(kinds == kernels.FROM_EDGE, 0, wheres)
        found = {}
        for leaf, column in self.observation.items():
            following = column[rows, lanes]
            following[edge] = self.bootstrap[leaf][wheres[edge], lanes[edge]]
            found[leaf] = following
        for index in final:
            slot, step = divmod(int(wheres[index]), self.num_steps)
            finals = self.finals[slot]
            if finals is None:
                raise LookupError(f"slot {slot} has no last observations")
            place = int(np.searchsorted(finals.index, step * self.reward.shape[1] + lanes[index]))
            for leaf, following in found.items():
                following[index] = finals.leaves[leaf][place]
        return found


def valid_of(fragment: Fragment) -> npt.NDArray[np.bool_]:
    """Which steps ``[T, B]`` of a fragment are transitions."""
    mask = fragment.columns.get(VALID)
    return empty_valid_mask(fragment.num_steps, fragment.num_lanes) if mask is None else mask


def pending_of(fragment: Fragment, n_step: int) -> npt.NDArray[np.bool_]:
    """Transitions ``[T, B]`` whose ``n_step`` steps reach into the next fragment, and so wait for it."""
    ended = fragment.columns[TERMINATED] | fragment.columns[TRUNCATED]
    ends_here = np.logical_or.accumulate(ended[::-1])[::-1]
    pending = valid_of(fragment) & ~ends_here
    pending[: max(0, fragment.num_steps - n_step + 1)] = False
    return pending
