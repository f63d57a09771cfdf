"""How much a contribution counts for its age."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sync.staleness import APPLIED, DOWN_WEIGHTED, LATE, STALE, Judgement, StalenessRule

Weight = Literal["inverse", "exponential", "none"]
WEIGHTS: tuple[Weight, ...] = ("inverse", "exponential", "none")


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("max_lag", [0, 1, 7])
def test_a_lag_of_max_lag_is_in_and_one_more_is_out(weight: Weight, max_lag: int) -> None:
    rule = StalenessRule(full_weight_lag=0, max_lag=max_lag, weight=weight)
    assert rule.judge(max_lag).factor > 0.0
    assert rule.judge(max_lag + 1) == Judgement(STALE, 0.0)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_what_comes_from_the_newest_version_is_applied_in_full(weight: Weight) -> None:
    assert StalenessRule(0, 0, weight).judge(0) == Judgement(APPLIED, 1.0)


@pytest.mark.parametrize(
    ("weight", "lag", "expected"),
    [
        ("inverse", 2, Judgement(LATE, 1.0)),
        ("inverse", 3, Judgement(DOWN_WEIGHTED, 1 / 2)),
        ("inverse", 5, Judgement(DOWN_WEIGHTED, 1 / 4)),
        ("exponential", 2, Judgement(LATE, 1.0)),
        ("exponential", 3, Judgement(DOWN_WEIGHTED, 1 / 2)),
        ("exponential", 5, Judgement(DOWN_WEIGHTED, 1 / 8)),
        ("none", 5, Judgement(LATE, 1.0)),
    ],
)
def test_beyond_the_full_weight_each_version_lowers_it(weight: Weight, lag: int, expected: Judgement) -> None:
    assert StalenessRule(full_weight_lag=2, max_lag=None, weight=weight).judge(lag) == expected


@given(
    full=st.integers(0, 20),
    max_lag=st.none() | st.integers(0, 60),
    weight=st.sampled_from(WEIGHTS),
    lag=st.integers(0, 2000),
)
def test_an_older_contribution_never_counts_more(
    full: int, max_lag: int | None, weight: Weight, lag: int
) -> None:
    rule = StalenessRule(full, max_lag, weight)
    assert 1.0 >= rule.judge(lag).factor >= rule.judge(lag + 1).factor >= 0.0
    assert (rule.judge(lag).factor == 0.0) == (rule.judge(lag).outcome == STALE)


@given(full=st.integers(0, 20), weight=st.sampled_from(["inverse", "none"]), lag=st.integers(0, 10**9))
def test_without_a_largest_lag_nothing_is_dropped(full: int, weight: Weight, lag: int) -> None:
    assert StalenessRule(full, None, weight).judge(lag).factor > 0.0


def test_a_weight_too_small_for_a_number_is_said_to_be_stale() -> None:
    rule = StalenessRule(full_weight_lag=0, max_lag=None, weight="exponential")
    assert rule.judge(1074).outcome == DOWN_WEIGHTED
    assert rule.judge(1075) == Judgement(STALE, 0.0)
