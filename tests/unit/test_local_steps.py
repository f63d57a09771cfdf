"""local_steps: auto goes down when the return jitters, up when learners idle, and says why."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sync.tuning import CHOICES, FIRST, WINDOW, Decision, LocalStepsTuner

STEADY = [float(value) for value in range(WINDOW)]
JITTERY = [100.0 * (value % 2) for value in range(WINDOW)]


def window(tuner: LocalStepsTuner, returns: Iterable[float | None], idle_share: float) -> Decision:
    """Feed one window; only its end may bring a decision."""
    decisions = [tuner.observe(value, idle_share) for value in returns]
    assert decisions[:-1] == [None] * (WINDOW - 1)
    assert decisions[-1] is not None
    return decisions[-1]


def test_idle_learners_exchange_less_often() -> None:
    decision = window(LocalStepsTuner(), STEADY, 0.5)
    assert (decision.before, decision.steps) == (FIRST, 32)
    assert decision.idle_share == pytest.approx(0.5)
    assert "idle" in decision.reason


def test_a_jittering_return_has_precedence() -> None:
    decision = window(LocalStepsTuner(), JITTERY, 0.9)
    assert (decision.before, decision.steps) == (FIRST, 8)
    assert decision.jitter > 0.4
    assert "jitters" in decision.reason


def test_a_steady_climb_is_no_jitter() -> None:
    decision = window(LocalStepsTuner(), STEADY, 0.0)
    assert decision.steps == FIRST
    assert decision.jitter == pytest.approx(0.0, abs=1e-9)


def test_before_any_episode_ended_nothing_jitters() -> None:
    assert window(LocalStepsTuner(), [None] * WINDOW, 0.0).steps == FIRST


@given(st.lists(st.tuples(st.none() | st.floats(-1e6, 1e6), st.floats(-1, 2)), max_size=6 * WINDOW))
def test_steps_are_a_choice_and_move_by_one_at_a_time(rounds: list[tuple[float | None, float]]) -> None:
    tuner = LocalStepsTuner()
    for return_mean, idle_share in rounds:
        decision = tuner.observe(return_mean, idle_share)
        if decision is not None:
            assert decision.steps in CHOICES
            assert abs(CHOICES.index(decision.steps) - CHOICES.index(decision.before)) <= 1
            assert decision.steps == tuner.steps
