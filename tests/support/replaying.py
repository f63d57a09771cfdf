"""Items drawn from replay, for tests of what learns from them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import learning
import numpy as np

from headrace.types import (
    ACTION,
    DISCOUNT,
    N_STEP_RETURN,
    NEXT_OBSERVATION,
    OBSERVATION,
    ReplayBatch,
    as_columns,
)


def random_batch(
    observation: gym.Space[Any],
    action: gym.Space[Any],
    *,
    steps: int = 3,
    size: int = 8,
    seed: int = 0,
) -> ReplayBatch:
    """Random items of these spaces: ``steps`` minibatches of ``size``; about a tenth of them terminated."""
    rng, rows = np.random.default_rng(seed), steps * size
    terminated = rng.random(rows) < 0.1
    return ReplayBatch(
        columns={
            **as_columns(OBSERVATION, learning.sample_leaves(observation, rows, seed=seed)),
            **as_columns(NEXT_OBSERVATION, learning.sample_leaves(observation, rows, seed=seed + 1)),
            **as_columns(ACTION, learning.sample_leaves(action, rows, seed=seed)),
            N_STEP_RETURN: rng.standard_normal(rows).astype(np.float32),
            DISCOUNT: np.where(terminated, 0.0, 0.99).astype(np.float32),
        },
        importance_weights=rng.uniform(0.2, 1.0, rows).astype(np.float32),
        num_gradient_steps=steps,
    )
