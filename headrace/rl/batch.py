"""Fragments side by side: what the learner trains on in one update."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.rl.normalizer import RunningMoments
from headrace.types import (
    ACTION,
    BEHAVIOR_LOG_PROB,
    EPISODE_LENGTH,
    EPISODE_RETURN,
    FINAL_INDEX,
    FINAL_OBSERVATION,
    FINAL_VALUE,
    NORMALIZER,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    VALUE,
    Array,
    Batch,
    Fragment,
    empty_valid_mask,
)

_TIME_MAJOR = (OBSERVATION, ACTION, REWARD, TERMINATED, TRUNCATED, BEHAVIOR_LOG_PROB, VALUE, VALID)
_PER_END = (FINAL_INDEX, FINAL_OBSERVATION, FINAL_VALUE, EPISODE_RETURN, EPISODE_LENGTH)


def stack_fragments(fragments: Sequence[Fragment], policy_lags: Sequence[int] = ()) -> Batch:
    """Concatenate fragments along lanes: ``[T, B]`` columns become ``[T, sum of B]``.

    ``final_index`` is renumbered to the batch's lanes and sorted, its companions with it. ``valid`` is
    present if any fragment has it. Normalizer deltas are merged into one. ValueError if there are no
    fragments, or if they differ in length T or in their columns (other than ``valid``).
    """
    if not fragments:
        raise ValueError("a batch needs at least one fragment")
    names = _common_names(fragments)
    columns: dict[str, Array] = {}
    for name in names:
        if _is(name, (FINAL_INDEX, FINAL_OBSERVATION, FINAL_VALUE)) or _is(name, (NORMALIZER,)):
            continue
        axis = 1 if _is(name, _TIME_MAJOR) else 0
        columns[name] = np.concatenate([fragment.columns[name] for fragment in fragments], axis=axis)
    if any(VALID in fragment.columns for fragment in fragments):
        columns[VALID] = np.concatenate([_valid_of(fragment) for fragment in fragments], axis=1)
    columns.update(_stack_finals(fragments, names))
    columns.update(_merge_normalizers(fragments, names))
    return Batch(
        columns=columns,
        num_transitions=sum(fragment.num_transitions for fragment in fragments),
        policy_lags=tuple(policy_lags),
        fragment_ids=tuple(fragment.id for fragment in fragments),
    )


def _is(name: str, families: tuple[str, ...]) -> bool:
    return any(name == family or name.startswith(family + "/") for family in families)


def _common_names(fragments: Sequence[Fragment]) -> list[str]:
    first = fragments[0]
    names = [name for name in first.columns if name != VALID]
    for other in fragments[1:]:
        if other.num_steps != first.num_steps:
            raise ValueError(f"{other.id} has {other.num_steps} steps, {first.id} has {first.num_steps}")
        differing = set(names) ^ {name for name in other.columns if name != VALID}
        if differing:
            raise ValueError(f"{other.id} and {first.id} differ in columns {sorted(differing)}")
    return names


def _valid_of(fragment: Fragment) -> Array:
    if VALID in fragment.columns:
        return fragment.columns[VALID]
    return empty_valid_mask(fragment.num_steps, fragment.num_lanes)


def _stack_finals(fragments: Sequence[Fragment], names: Sequence[str]) -> dict[str, Array]:
    """Renumber ``t * B + lane`` to the wider batch and put all ends in ascending order."""
    total = sum(fragment.num_lanes for fragment in fragments)
    renumbered, lane_offset = [], 0
    for fragment in fragments:
        step, lane = np.divmod(fragment.columns[FINAL_INDEX].astype(np.int64), fragment.num_lanes)
        renumbered.append(step * total + lane + lane_offset)
        lane_offset += fragment.num_lanes
    index = np.concatenate(renumbered)
    order = np.argsort(index, kind="stable")
    stacked: dict[str, Array] = {FINAL_INDEX: index[order].astype(np.int32)}
    for name in names:
        if _is(name, (FINAL_OBSERVATION, FINAL_VALUE)):
            stacked[name] = np.concatenate([fragment.columns[name] for fragment in fragments])[order]
    return stacked


def _merge_normalizers(fragments: Sequence[Fragment], names: Sequence[str]) -> dict[str, Array]:
    merged: dict[str, Array] = {}
    for name in names:
        prefix = name.removesuffix("/m2")
        if _is(name, (NORMALIZER,)) and name.endswith("/m2"):
            moments = RunningMoments.from_columns(prefix, fragments[0].columns)
            for fragment in fragments[1:]:
                moments.merge(RunningMoments.from_columns(prefix, fragment.columns))
            merged.update(moments.columns(prefix))
    return merged
