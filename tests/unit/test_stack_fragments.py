"""Fragments side by side: nothing is lost, every end stays with its lane."""

from __future__ import annotations

import learning
import numpy as np
import pytest

from headrace.rl.batch import stack_fragments
from headrace.rl.normalizer import RunningMoments
from headrace.rl.returns import generalized_advantages
from headrace.types import FINAL_INDEX, FINAL_VALUE, LANE_SEED, REWARD, VALID, Fragment


def fragments(count: int, *, invalid: tuple[bool, ...] = ()) -> list[Fragment]:
    made = []
    for i in range(count):
        rng = np.random.default_rng(i)
        columns = learning.trajectory_columns(
            rng, num_steps=6, num_lanes=2 + i, end_probability=0.3, invalid=(invalid or (False,) * count)[i]
        )
        columns[LANE_SEED] = np.arange(2 + i, dtype=np.int64) + 10 * i
        made.append(learning.make_fragment(columns, sequence=2 * i))  # gaps: nobody follows anybody
    return made


def test_columns_lie_side_by_side_along_lanes() -> None:
    parts = fragments(3)
    batch = stack_fragments(parts, [0, 1, 2])
    assert batch.columns[REWARD].shape == (6, 9)
    assert np.array_equal(batch.columns[REWARD][:, 2:5], parts[1].columns[REWARD])
    assert batch.columns[LANE_SEED].tolist() == [0, 1, 10, 11, 12, 20, 21, 22, 23]
    assert batch.num_transitions == 6 * 9
    assert batch.policy_lags == (0, 1, 2)
    assert batch.fragment_ids == tuple(part.id for part in parts)


def test_ends_are_renumbered_in_ascending_order() -> None:
    parts = fragments(3)
    batch = stack_fragments(parts)
    index = batch.columns[FINAL_INDEX]
    assert index.dtype == np.int32
    assert np.all(np.diff(index) > 0)
    offset = 0
    for part in parts:
        for own, value in zip(part.columns[FINAL_INDEX], part.columns[FINAL_VALUE], strict=True):
            step, lane = divmod(int(own), part.num_lanes)
            where = np.flatnonzero(index == step * 9 + lane + offset)
            assert batch.columns[FINAL_VALUE][where] == value
        offset += part.num_lanes


def test_advantages_of_the_batch_are_those_of_the_fragments() -> None:
    parts = fragments(3, invalid=(True, False, True))
    whole = generalized_advantages(stack_fragments(parts).columns, gamma=0.9, gae_lambda=0.8)
    apart = [generalized_advantages(part.columns, gamma=0.9, gae_lambda=0.8) for part in parts]
    np.testing.assert_array_equal(whole, np.concatenate(apart, axis=1))


def test_a_fragment_without_a_mask_is_all_valid() -> None:
    parts = fragments(2, invalid=(True, False))
    valid = stack_fragments(parts).columns[VALID]
    assert np.array_equal(valid[:, :2], parts[0].columns[VALID])
    assert valid[:, 2:].all()


def test_no_mask_if_nobody_has_one() -> None:
    assert VALID not in stack_fragments(fragments(2)).columns


def test_normalizer_deltas_are_merged() -> None:
    rows = np.random.default_rng(0).standard_normal((10, 3))
    parts = fragments(2)
    for part, own in zip(parts, (rows[:4], rows[4:]), strict=True):
        part.columns.update(RunningMoments.of(own).columns("normalizer/a"))  # type: ignore[attr-defined]
    merged = RunningMoments.from_columns("normalizer/a", stack_fragments(parts).columns)
    assert merged.count == 10
    np.testing.assert_allclose(merged.mean, rows.mean(0))
    np.testing.assert_allclose(merged.std, rows.std(0))


def test_fragments_of_different_length_are_refused() -> None:
    short = learning.make_fragment(
        learning.trajectory_columns(np.random.default_rng(0), num_steps=3, num_lanes=2), sequence=9
    )
    with pytest.raises(ValueError, match="has 3 steps"):
        stack_fragments([*fragments(1), short])


def test_fragments_with_different_columns_are_refused() -> None:
    parts = fragments(2)
    del parts[1].columns[LANE_SEED]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="differ in columns"):
        stack_fragments(parts)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one fragment"):
        stack_fragments([])
