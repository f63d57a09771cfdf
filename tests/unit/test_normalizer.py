"""Running moments: merging deltas equals seeing everything at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.rl.normalizer import RunningMoments

sizes = st.lists(st.integers(0, 20), min_size=1, max_size=6)


@given(sizes, st.integers(0, 2**32 - 1), st.floats(-1e6, 1e6))
@settings(max_examples=60, deadline=None)
def test_merging_parts_equals_numpy_over_all(parts: list[int], seed: int, offset: float) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((size, 3)) + offset for size in parts]
    moments = RunningMoments.empty((3,))
    for part in rows:
        moments.merge(RunningMoments.of(part))
    everything = np.concatenate(rows)
    assert moments.count == len(everything)
    if len(everything):
        np.testing.assert_allclose(moments.mean, everything.mean(0), rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(moments.m2 / moments.count, everything.var(0), rtol=1e-6, atol=1e-9)


def test_nothing_seen_leaves_the_scale_alone() -> None:
    assert RunningMoments.empty((2,)).std.tolist() == [1.0, 1.0]


def test_a_constant_does_not_divide_by_zero() -> None:
    assert np.all(RunningMoments.of(np.full((5, 2), 3.0)).std > 0)


def test_columns_hold_the_state_exactly() -> None:
    moments = RunningMoments.of(np.random.default_rng(0).standard_normal((7, 2)))
    again = RunningMoments.from_columns("normalizer/a", moments.columns("normalizer/a"))
    assert again.count == moments.count
    assert np.array_equal(again.mean, moments.mean)
    assert np.array_equal(again.m2, moments.m2)


def test_deltas_are_float64_whatever_the_observation() -> None:
    rows = np.full((1000, 1), 1e4, np.float32) + np.arange(1000, dtype=np.float32)[:, None] / 1000
    moments = RunningMoments.of(rows)
    assert moments.mean.dtype == np.float64
    assert float(moments.std[0]) == pytest.approx(float(rows.astype(np.float64).std()), rel=1e-9)
