"""Advantages and returns: exact targets for every kind of end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.rl.returns import discounted_returns, generalized_advantages, n_step_returns
from headrace.types import (
    BOOTSTRAP_VALUE,
    FINAL_INDEX,
    FINAL_VALUE,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    VALUE,
    Array,
)

GAMMA, LAMBDA = 0.9, 0.8


def lane(
    rewards: list[float],
    values: list[float],
    *,
    bootstrap: float = 0.0,
    ends: dict[int, tuple[str, float]] | None = None,
) -> dict[str, Array]:
    """One lane; ``ends`` gives kind and final_value by step."""
    steps, ends = len(rewards), ends or {}

    def flags(kinds: tuple[str, ...]) -> Array:
        return np.array([[ends.get(t, ("", 0.0))[0] in kinds] for t in range(steps)])

    return {
        REWARD: np.array(rewards, np.float32)[:, None],
        VALUE: np.array(values, np.float32)[:, None],
        TERMINATED: flags(("terminated", "both")),
        TRUNCATED: flags(("truncated", "both")),
        BOOTSTRAP_VALUE: np.array([bootstrap], np.float32),
        FINAL_INDEX: np.array(sorted(ends), np.int32),
        FINAL_VALUE: np.array([ends[t][1] for t in sorted(ends)], np.float32),
    }


def advantages(columns: dict[str, Array], **kwargs: Any) -> list[float]:
    result = generalized_advantages(columns, gamma=GAMMA, gae_lambda=LAMBDA, **kwargs)
    return [float(value) for value in result[:, 0]]


def test_fragment_edge_bootstraps_from_the_value_after_it() -> None:
    last = 2.0 + GAMMA * 10.0 - 0.5
    first = 1.0 + GAMMA * 0.5 - 0.25 + GAMMA * LAMBDA * last
    assert advantages(lane([1, 2], [0.25, 0.5], bootstrap=10)) == pytest.approx([first, last])


def test_termination_does_not_bootstrap() -> None:
    columns = lane([1, 2], [0.25, 0.5], bootstrap=10, ends={0: ("terminated", 99.0)})
    assert advantages(columns) == pytest.approx([1.0 - 0.25, 2.0 + GAMMA * 10 - 0.5])


def test_truncation_bootstraps_from_the_true_last_observation() -> None:
    columns = lane([1, 2], [0.25, 0.5], bootstrap=10, ends={0: ("truncated", 7.0)})
    assert advantages(columns) == pytest.approx([1.0 + GAMMA * 7 - 0.25, 2.0 + GAMMA * 10 - 0.5])


def test_truncation_at_the_fragment_edge_uses_final_value_not_bootstrap_value() -> None:
    columns = lane([1], [0.25], bootstrap=10, ends={0: ("truncated", 7.0)})
    assert advantages(columns) == pytest.approx([1.0 + GAMMA * 7 - 0.25])


def test_terminated_wins_over_truncated() -> None:
    columns = lane([1, 2], [0.25, 0.5], bootstrap=10, ends={0: ("both", 7.0)})
    assert advantages(columns)[0] == pytest.approx(1.0 - 0.25)


def test_void_steps_get_zero_and_pass_no_trace() -> None:
    columns = lane([1, 50, 2], [0.25, 30, 0.5], bootstrap=10, ends={0: ("truncated", 7.0)})
    columns[VALID] = np.array([[True], [False], [True]])
    last = 2.0 + GAMMA * 10 - 0.5
    assert advantages(columns) == pytest.approx([1.0 + GAMMA * 7 - 0.25, 0.0, last])


def test_void_steps_may_hold_anything() -> None:
    columns = lane([np.nan, 2], [np.nan, 0.5], bootstrap=10)
    columns[VALID] = np.array([[False], [True]])
    assert advantages(columns) == pytest.approx([0.0, 2.0 + GAMMA * 10 - 0.5])


def test_truncation_without_final_value_is_refused() -> None:
    columns = lane([1, 2], [0, 0], ends={1: ("truncated", 7.0)})
    columns[FINAL_INDEX] = np.array([], np.int32)
    columns[FINAL_VALUE] = np.array([], np.float32)
    with pytest.raises(ValueError, match="step 1 of lane 0 is truncated but has no final_value"):
        advantages(columns)


def test_next_advantage_joins_consecutive_fragments() -> None:
    whole = advantages(lane([1, 2, 3], [0.25, 0.5, 0.75], bootstrap=10))
    tail = advantages(lane([3], [0.75], bootstrap=10))
    head = advantages(lane([1, 2], [0.25, 0.5], bootstrap=0.75), next_advantage=np.array(tail))
    assert head + tail == pytest.approx(whole)


def test_discounted_return_by_hand() -> None:
    columns = lane([1, 2, 3], [0, 0, 0], bootstrap=10, ends={1: ("terminated", 0.0)})
    returns = discounted_returns(columns, gamma=GAMMA)[:, 0]
    assert returns == pytest.approx([1 + GAMMA * 2, 2, 3 + GAMMA * 10])


def test_n_step_return_by_hand() -> None:
    columns = lane([1, 2, 3, 4], [10, 20, 30, 40], bootstrap=50)
    returns = n_step_returns(columns, gamma=GAMMA, n_step=2)[:, 0]
    assert returns == pytest.approx(
        [
            1 + GAMMA * 2 + GAMMA**2 * 30,
            2 + GAMMA * 3 + GAMMA**2 * 40,
            3 + GAMMA * 4 + GAMMA**2 * 50,
            4 + GAMMA * 50,
        ]
    )


def test_n_step_must_be_positive() -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        n_step_returns(lane([1], [0]), gamma=GAMMA, n_step=0)
