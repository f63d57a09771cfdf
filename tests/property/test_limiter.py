"""The limiter holds inserts and samples together, and never holds back both."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.replay.limiter import UNLIMITED, Limiter, Limits, deadlocks

ratios = st.floats(0.01, 300.0)
sizes = st.integers(1, 500)


def make_limits(**changes: Any) -> Limits:
    values: dict[str, Any] = {
        "samples_per_insert": 4.0,
        "min_size_to_sample": 1000,
        "tolerance_share": 0.1,
        "largest_insert": 16,
        "largest_draw": 64,
    }
    return Limits(**values | changes)


all_limits = st.builds(
    Limits,
    samples_per_insert=ratios,
    min_size_to_sample=sizes,
    tolerance_share=st.floats(0.0, 2.0),
    largest_insert=sizes,
    largest_draw=sizes,
)


class LimiterMachine(RuleBasedStateMachine):
    """A sampler and a learner that do what they may; experience that is evicted or dies."""

    @initialize(limits=all_limits)
    def begin(self, limits: Limits) -> None:
        self.limits = limits
        self.limiter = Limiter(limits)
        self.inserted = self.sampled = self.stored = 0

    def tell(self) -> None:
        self.limiter.update(inserted=self.inserted, sampled=self.sampled, stored=self.stored)

    @rule(part=st.floats(0.0, 1.0))
    def insert(self, part: float) -> None:
        allowed = min(self.limits.largest_insert, self.limiter.insert_allowance - self.inserted)
        count = max(0, round(part * allowed))
        self.inserted += count
        self.stored += count
        self.tell()
        upper = self.limits.middle + self.limits.tolerance
        if self.stored > self.limits.min_size_to_sample + self.limits.largest_insert:
            assert self.cursor <= upper or not count

    @rule(part=st.floats(0.0, 1.0))
    def sample(self, part: float) -> None:
        allowed = min(self.limits.largest_draw, self.limiter.sample_allowance - self.sampled)
        count = max(0, round(part * allowed))
        assert not count or self.limiter.has_enough
        self.sampled += count
        self.tell()
        assert not count or self.cursor >= self.limits.middle - self.limits.tolerance

    @rule(part=st.floats(0.0, 1.0))
    def lose(self, part: float) -> None:
        self.stored -= round(part * self.stored)
        self.tell()

    @rule()
    def begin_again_from_the_counters(self) -> None:
        before = self.limiter
        self.limiter = Limiter(self.limits)
        self.tell()
        assert self.limiter.insert_allowance == before.insert_allowance
        assert self.limiter.sample_allowance == before.sample_allowance

    @property
    def cursor(self) -> Fraction:
        return self.inserted * Fraction(self.limits.samples_per_insert or 0) - self.sampled

    @invariant()
    def one_side_may_always_go_on(self) -> None:
        may_insert = self.limiter.insert_allowance - self.inserted >= self.limits.largest_insert
        may_sample = self.limiter.sample_allowance - self.sampled >= self.limits.largest_draw
        assert may_insert or may_sample


TestLimiter = LimiterMachine.TestCase
TestLimiter.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@given(all_limits, st.lists(st.booleans(), min_size=1, max_size=200))
def test_allowances_of_inserts_and_samples_only_rise_while_nothing_is_lost(
    limits: Limits, inserts: list[bool]
) -> None:
    limiter, inserted, sampled = Limiter(limits), 0, 0
    for is_insert in inserts:
        before = (limiter.insert_allowance, limiter.sample_allowance)
        if is_insert:
            inserted += max(0, min(limits.largest_insert, limiter.insert_allowance - inserted))
        else:
            sampled += max(0, min(limits.largest_draw, limiter.sample_allowance - sampled))
        limiter.update(inserted=inserted, sampled=sampled, stored=inserted)
        assert limiter.insert_allowance >= before[0]
        assert limiter.sample_allowance >= before[1]


def test_over_a_long_run_the_ratio_is_kept() -> None:
    limits = make_limits(samples_per_insert=0.3, largest_draw=7)
    limiter, inserted, sampled = Limiter(limits), 0, 0
    while inserted < 100_000:
        may_insert = limiter.insert_allowance - inserted
        may_sample = limiter.sample_allowance - sampled
        if may_insert >= limits.largest_insert:
            inserted += limits.largest_insert
        else:
            sampled += may_sample
        limiter.update(inserted=inserted, sampled=sampled, stored=inserted)
    assert sampled / inserted == pytest.approx(0.3, abs=0.01)


def test_without_a_ratio_only_the_least_size_holds_samples_back() -> None:
    limiter = Limiter(make_limits(samples_per_insert=None))
    limiter.update(inserted=999, sampled=0, stored=999)
    assert (limiter.insert_allowance, limiter.sample_allowance) == (UNLIMITED, 0)
    limiter.update(inserted=1000, sampled=0, stored=1000)
    assert limiter.sample_allowance == UNLIMITED


def test_the_tolerance_is_as_set_where_that_is_wide_enough() -> None:
    assert make_limits(tolerance_share=0.5).tolerance == 2000  # 0.5 * 1000 * 4
    assert make_limits(tolerance_share=0.0).tolerance == 68  # 4 * (16 + 1)
    assert make_limits(tolerance_share=0.0, largest_draw=200).tolerance == 134  # (68 + 200) / 2


def test_below_the_least_size_inserts_are_allowed_however_many_there_have_been() -> None:
    limiter = Limiter(make_limits())
    limiter.update(inserted=10**6, sampled=0, stored=0)
    assert limiter.insert_allowance == 10**6 + 1000 + 16
    limiter.update(inserted=10**6, sampled=0, stored=2000)
    assert limiter.insert_allowance < 10**6


def test_counters_that_fall_are_ignored() -> None:
    limiter = Limiter(make_limits())
    limiter.update(inserted=2000, sampled=500, stored=2000)
    limiter.update(inserted=10, sampled=5, stored=2000)
    assert (limiter.inserted, limiter.sampled) == (2000, 500)


def refusals(**changes: Any) -> list[str]:
    values: dict[str, Any] = {
        "samples_per_insert": None,
        "min_size_to_sample": 1000,
        "max_times_sampled": None,
        "capacity": 1000,
        "least_hot_bytes": 70_000,
    }
    return list(deadlocks(**values | changes))


def test_settings_that_can_never_go_on_are_refused_with_a_value_that_works() -> None:
    assert refusals() == []
    (capacity,) = refusals(capacity=999)
    assert capacity.startswith("replay.min_size_to_sample: 1000 transitions never come together")
    assert "the least replay.hot_capacity_bytes that works is 70000" in capacity
    (times,) = refusals(samples_per_insert=2.5, max_times_sampled=2)
    assert times.startswith("replay.max_times_sampled:")
    assert times.endswith("the least is 3.")
    assert refusals(samples_per_insert=2.5, max_times_sampled=3) == []
