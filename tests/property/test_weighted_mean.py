"""Means of flat vectors by weight."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.sync.aggregation import FlatArray, first_not_finite, weighted_mean

NUMBERS = st.floats(-1e6, 1e6, width=32)
WEIGHTS = st.floats(0.01, 1000.0)


def vectors_of(size: int, count: int) -> st.SearchStrategy[list[FlatArray]]:
    return st.lists(hnp.arrays(np.float32, size, elements=NUMBERS), min_size=count, max_size=count)


@given(vector=hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32)), weight=WEIGHTS)
def test_one_vector_stays_what_it_was_bit_for_bit(vector: FlatArray, weight: float) -> None:
    others = np.zeros_like(vector)
    mean = weighted_mean([others, vector, others], [0.0, weight, 0.0])
    assert mean.tobytes() == vector.tobytes()
    assert not np.shares_memory(mean, vector)


@given(data=st.data(), count=st.integers(2, 5))
def test_it_is_the_mean_by_weight(data: st.DataObject, count: int) -> None:
    vectors = data.draw(vectors_of(7, count))
    weights = data.draw(st.lists(WEIGHTS, min_size=count, max_size=count))
    exact = np.average(np.array(vectors, np.float64), axis=0, weights=weights)
    largest = float(np.abs(vectors).max())
    np.testing.assert_allclose(weighted_mean(vectors, weights), exact, rtol=1e-6, atol=1e-6 * largest)


@given(data=st.data())
def test_who_came_first_changes_no_bit_where_contributions_are_sorted(data: st.DataObject) -> None:
    offers = dict(
        zip("abcd", zip(data.draw(vectors_of(7, 4)), [3.0, 1.0, 4.0, 2.0], strict=True), strict=True)
    )
    results = set()
    for order in (data.draw(st.permutations("abcd")), "abcd"):
        arrived = {name: offers[name] for name in order}
        pairs = [arrived[name] for name in sorted(arrived)]
        results.add(weighted_mean([v for v, _ in pairs], [w for _, w in pairs]).tobytes())
    assert len(results) == 1


@given(
    rows=hnp.arrays(np.float32, (12, 5), elements=st.floats(-100, 100, width=32)),
    cut=st.integers(1, 11),
)
def test_the_mean_of_two_parts_by_their_samples_is_that_of_the_whole(rows: FlatArray, cut: int) -> None:
    parts = [rows[:cut].mean(0), rows[cut:].mean(0)]
    whole = rows.astype(np.float64).mean(0)
    np.testing.assert_allclose(weighted_mean(parts, [cut, 12 - cut]), whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("weights", [[], [0.0], [0.0, -1.0]])
def test_a_mean_of_nothing_is_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one vector"):
        weighted_mean([np.ones(2, np.float32) for _ in weights], weights)


@given(vector=hnp.arrays(np.float32, st.integers(0, 30), elements=st.floats(width=32)))
def test_the_first_number_that_is_not_finite_is_found(vector: FlatArray) -> None:
    expected = next((index for index, value in enumerate(vector) if not np.isfinite(value)), None)
    assert first_not_finite(vector) == expected
