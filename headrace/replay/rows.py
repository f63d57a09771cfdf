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
        """Those that a target bootstraps from: a terminated episode has no use for its last observation.

        ValueError if one is missing.
        """
        columns = fragment.columns
        index, leaves = np.array(columns[FINAL_INDEX], np.int64), leaves_of(FINAL_OBSERVATION, columns)
        needed = (columns[TRUNCATED] & ~columns[TERMINATED] & columns.get(VALID, np.True_)).reshape(-1)
        kept = needed[index]
        if np.count_nonzero(kept) != np.count_nonzero(needed):
            raise ValueError(f"fragment {fragment.id} has truncated steps without a final observation")
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
            successor=np.array(successor, np.int64),
        )

    def gather(self, slots: Int64s, items: Int64s, *, n_step: int, gamma: float) -> dict[str, Array]:
        """Columns ``[N, ...]`` of the items ``items`` (t * B + lane) of the chunks in ``slots``.

        observation, action, n_step_return, discount and next_observation; see :mod:`headrace.types`. They
        are copies. IndexError for an item that isn't there; LookupError if a last observation is missing.
        """
        slots, items = np.array(slots, np.int64), np.array(items, np.int64)  # writable: see kernels
        count = len(slots)
        returns, discounts = np.empty(count, np.float32), np.empty(count, np.float32)
        kinds = np.empty(count, np.int8)
        heres, wheres = np.empty(count, np.int64), np.empty(count, np.int64)
        there = kernels.walk_n_steps(
            self.reward, self.terminated, self.truncated, self.valid, self.successor,
            slots, items, n_step, gamma, returns, discounts, heres, kinds, wheres,
        )  # fmt: skip
        if not there:
            raise IndexError("an item outside of the chunks")
        return {
            **as_columns(OBSERVATION, _at(self.observation, heres)),
            **as_columns(ACTION, _at(self.action, heres)),
            N_STEP_RETURN: returns,
            DISCOUNT: discounts,
            **as_columns(NEXT_OBSERVATION, self._following(kinds, wheres)),
        }

    def columns_of(
        self, slots: Int64s, items: Int64s, *, sequence_length: int, n_step: int, gamma: float
    ) -> dict[str, Array]:
        """The items as transitions if ``sequence_length`` is 1, as sequences if it is more."""
        if sequence_length > 1:
            return self.gather_sequences(slots, items, length=sequence_length, gamma=gamma)
        return self.gather(slots, items, n_step=n_step, gamma=gamma)

    def gather_sequences(
        self, slots: Int64s, items: Int64s, *, length: int, gamma: float
    ) -> dict[str, Array]:
        """Columns of the sequences of up to L = ``length`` steps that begin with the items (t * B + lane).

        observation, action, reward, terminated and truncated ``[N, L, ...]``, and valid ``[N, L]``: a
        sequence ends with its episode, or where the next transition is not at hand; what follows is 0.
        next_observation and discount ``[N, ...]`` are those of its last step. Nothing is stored for a
        sequence: the rows that they share are read again for each.
        """
        slots, items = np.array(slots, np.int64), np.array(items, np.int64)
        lanes, per_chunk = self.reward.shape[1], self.num_steps * self.reward.shape[1]
        steps, lane = np.divmod(items, lanes)
        places = np.zeros((len(slots), length), np.int64)
        valid = np.zeros((len(slots), length), np.bool_)
        flat_valid = self.valid.reshape(-1)
        ended = (self.terminated | self.truncated).reshape(-1)
        last_slots, last_items = slots.copy(), items.copy()
        alive = np.ones(len(slots), np.bool_)
        for column in range(length):
            place = slots * per_chunk + steps * lanes + lane
            alive = alive & (slots >= 0)
            alive[alive] = flat_valid[place[alive]]
            places[:, column], valid[:, column] = np.where(alive, place, 0), alive
            last_slots[alive], last_items[alive] = slots[alive], (steps * lanes + lane)[alive]
            alive[alive] = ~ended[place[alive]]
            steps = steps + 1
            over = steps == self.num_steps
            slots = np.where(over & alive, self.successor[slots], slots)
            steps = np.where(over, 0, steps)
        last = self.gather(last_slots, last_items, n_step=1, gamma=gamma)
        rows = {
            **as_columns(OBSERVATION, _at(self.observation, places)),
            **as_columns(ACTION, _at(self.action, places)),
            **_at({REWARD: self.reward, TERMINATED: self.terminated, TRUNCATED: self.truncated}, places),
        }
        for array in rows.values():
            array[~valid] = 0
        following = {
            name: array
            for name, array in last.items()
            if name == DISCOUNT or name.partition("/")[0] == NEXT_OBSERVATION
        }
        return {**rows, VALID: valid, **following}

    def _following(self, kinds: npt.NDArray[np.int8], wheres: Int64s) -> dict[str, Array]:
        """The observations ``[N, ...]`` that the items' targets bootstrap from."""
        elsewhere = np.flatnonzero(kinds)
        if not len(elsewhere):
            return _at(self.observation, wheres)
        edge = elsewhere[kinds[elsewhere] == kernels.FROM_EDGE]
        final = elsewhere[kinds[elsewhere] == kernels.FROM_FINAL]
        found = _at(self.observation, np.where(kinds == kernels.FROM_EDGE, 0, wheres))
        for leaf, at_edge in _at(self.bootstrap, wheres[edge]).items():
            found[leaf][edge] = at_edge
        per_chunk = self.num_steps * self.reward.shape[1]
        for index in final:
            slot, item = divmod(int(wheres[index]), per_chunk)
            finals = self.finals[slot]
            place = 0 if finals is None else int(np.searchsorted(finals.index, item))
            if finals is None or place == len(finals.index) or finals.index[place] != item:
                raise LookupError(f"item {item} of slot {slot} is truncated but has no last observation")
            for leaf, following in found.items():
                following[index] = finals.leaves[leaf][place]
        return found


def _at(leaves: Mapping[str, Array], places: Int64s) -> dict[str, Array]:
    """Rows ``[N, ...]`` of leaves ``[R, B, ...]``, copied; a place is ``row * B + lane``."""
    return {
        leaf: array.reshape(-1, *array.shape[2:]).take(places, axis=0, mode="clip")
        for leaf, array in leaves.items()
    }


def valid_of(fragment: Fragment) -> npt.NDArray[np.bool_]:
    """Which steps ``[T, B]`` of a fragment are transitions."""
    mask = fragment.columns.get(VALID)
    return empty_valid_mask(fragment.num_steps, fragment.num_lanes) if mask is None else mask


def pending_of(fragment: Fragment, n_step: int) -> npt.NDArray[np.bool_]:
    """Transitions ``[T, B]`` whose ``n_step`` steps reach into the next fragment, and so wait for it."""
    edge = slice(max(0, fragment.num_steps - n_step + 1), None)
    pending = np.zeros((fragment.num_steps, fragment.num_lanes), np.bool_)
    ended = fragment.columns[TERMINATED][edge] | fragment.columns[TRUNCATED][edge]
    if len(ended):
        pending[edge] = ~np.logical_or.accumulate(ended[::-1])[::-1]
        pending &= fragment.columns.get(VALID, np.True_)
    return pending
