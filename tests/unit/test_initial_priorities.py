"""First priorities: the n-step error of the acting policy's own values, by brute force."""

from __future__ import annotations

import learning
import numpy as np
import pytest

from headrace.rl.initial_priorities import SMALLEST, initial_priorities
from headrace.types import (
    ACTION_VALUE,
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


def by_hand(columns: dict[str, Array], step: int, lane: int, *, gamma: float, n_step: int) -> float:
    steps, lanes = columns[REWARD].shape
    target, factor = 0.0, 1.0
    for row in range(step, min(steps, step + n_step)):
        target += factor * float(columns[REWARD][row, lane])
        factor *= gamma
        if columns[TERMINATED][row, lane]:
            return target
        if columns[TRUNCATED][row, lane]:
            end = columns[FINAL_INDEX].tolist().index(row * lanes + lane)
            return target + factor * float(columns[FINAL_VALUE][end])
    last = step + n_step
    value = columns[VALUE][last, lane] if last < steps else columns[BOOTSTRAP_VALUE][lane]
    return target + factor * float(value)


@pytest.mark.parametrize("n_step", [1, 3, 20])
@pytest.mark.parametrize("invalid", [False, True])
def test_they_are_the_absolute_errors(n_step: int, invalid: bool) -> None:
    rng = np.random.default_rng(n_step)
    columns = learning.trajectory_columns(rng, num_steps=12, num_lanes=3, invalid=invalid)
    columns[ACTION_VALUE] = rng.standard_normal((12, 3)).astype(np.float32)
    priorities = initial_priorities(learning.make_fragment(columns), gamma=0.9, n_step=n_step)
    assert priorities is not None
    assert priorities.dtype == np.float32
    for step in range(12):
        for lane in range(3):
            if VALID in columns and not columns[VALID][step, lane]:
                assert priorities[step, lane] == 0.0
                continue
            target = by_hand(columns, step, lane, gamma=0.9, n_step=n_step)
            error = abs(target - float(columns[ACTION_VALUE][step, lane]))
            assert priorities[step, lane] == pytest.approx(error + SMALLEST, rel=1e-5)


def test_there_are_none_where_the_policy_knows_no_values_of_actions() -> None:
    columns = learning.trajectory_columns(np.random.default_rng(0), num_steps=4, num_lanes=2)
    assert initial_priorities(learning.make_fragment(columns), gamma=0.9, n_step=1) is None
