"""Restarts: backoff that doubles, a cap within a window, and forgiveness after it."""

from __future__ import annotations

from headrace.config.sections import RestartConfig
from headrace.local.restarts import RestartBudget


def _limits(**values: float) -> RestartConfig:
    return RestartConfig.model_validate(
        {"max_restarts": 5, "window_s": 100.0, "backoff_s": 0.5, "max_backoff_s": 3.0, **values}
    )


def test_backoff_doubles_up_to_its_maximum() -> None:
    budget = RestartBudget(_limits())
    assert [budget.record_death(float(second)) for second in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_the_budget_of_a_window_is_spent() -> None:
    budget = RestartBudget(_limits())
    for second in range(5):
        assert budget.record_death(float(second)) is not None
    assert budget.record_death(5.0) is None


def test_deaths_older_than_the_window_are_forgotten() -> None:
    budget = RestartBudget(_limits())
    for second in range(5):
        budget.record_death(float(second))
    assert budget.record_death(150.0) == 0.5


def test_zero_restarts_means_none() -> None:
    assert RestartBudget(_limits(max_restarts=0)).record_death(0.0) is None
