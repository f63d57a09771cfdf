"""Advantages and returns against a definition that follows each transition to its end, one by one."""

from __future__ import annotations

import itertools
from typing import Any

import learning
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.rl.batch import stack_fragments
from headrace.rl.returns import (
    batch_advantages,
    discounted_returns,
    generalized_advantages,
    n_step_returns,
)
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

GAMMA = 0.95

batches = st.builds(
    lambda seed, steps, lanes, probability, invalid: learning.trajectory_columns(
        np.random.default_rng(seed),
        num_steps=steps,
        num_lanes=lanes,
        end_probability=probability,
        invalid=invalid,
    ),
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    lanes=st.integers(1, 4),
    probability=st.sampled_from([0.0, 0.1, 0.4]),
    invalid=st.booleans(),
)


def following(columns: dict[str, Array], t: int, lane: int) -> tuple[float, bool]:
    """V of what follows step t, and whether the trace goes on."""
    steps, lanes = columns[REWARD].shape
    if columns[TERMINATED][t, lane]:
        return 0.0, False
    if columns[TRUNCATED][t, lane]:
        where = list(columns[FINAL_INDEX]).index(t * lanes + lane)
        return float(columns[FINAL_VALUE][where]), False
    if t == steps - 1:
        return float(columns[BOOTSTRAP_VALUE][lane]), False
    return float(columns[VALUE][t + 1, lane]), True


def brute_force(columns: dict[str, Array], *, gae_lambda: float) -> Array:
    result = np.zeros(columns[REWARD].shape)
    for start, lane in np.ndindex(*result.shape):
        if VALID in columns and not columns[VALID][start, lane]:
            continue
        t, weight, goes_on = start, 1.0, True
        while goes_on:
            value, goes_on = following(columns, t, lane)
            delta = columns[REWARD][t, lane] + GAMMA * value - columns[VALUE][t, lane]
            result[start, lane] += weight * delta
            weight *= GAMMA * gae_lambda
            t += 1
    return result


def brute_force_n_step(columns: dict[str, Array], *, n_step: int) -> Array:
    result = np.zeros(columns[REWARD].shape)
    for start, lane in np.ndindex(*result.shape):
        if VALID in columns and not columns[VALID][start, lane]:
            continue
        for k in range(n_step):
            result[start, lane] += GAMMA**k * columns[REWARD][start + k, lane]
            value, goes_on = following(columns, start + k, lane)
            if not goes_on or k == n_step - 1:
                result[start, lane] += GAMMA ** (k + 1) * value
                break
    return result


def cut(columns: dict[str, Array], begin: int, end: int) -> dict[str, Array]:
    """Steps ``[begin, end)`` as a fragment of its own."""
    steps, lanes = columns[REWARD].shape
    time_major = (REWARD, VALUE, TERMINATED, TRUNCATED, VALID)
    part = {name: columns[name][begin:end] for name in time_major if name in columns}
    inside = (columns[FINAL_INDEX] >= begin * lanes) & (columns[FINAL_INDEX] < end * lanes)
    part[FINAL_INDEX] = columns[FINAL_INDEX][inside] - begin * lanes
    part[FINAL_VALUE] = columns[FINAL_VALUE][inside]
    part[BOOTSTRAP_VALUE] = columns[BOOTSTRAP_VALUE] if end == steps else columns[VALUE][end]
    return part


@given(batches, st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_gae_is_the_discounted_sum_of_deltas(columns: dict[str, Array], gae_lambda: float) -> None:
    result = generalized_advantages(columns, gamma=GAMMA, gae_lambda=gae_lambda)
    np.testing.assert_allclose(result, brute_force(columns, gae_lambda=gae_lambda), atol=1e-6)


@given(batches)
@settings(max_examples=60, deadline=None)
def test_discounted_return_is_gae_with_lambda_one_plus_value(columns: dict[str, Array]) -> None:
    value = columns[VALUE] * columns.get(VALID, np.True_)
    expected = brute_force(columns, gae_lambda=1.0) + value
    np.testing.assert_allclose(discounted_returns(columns, gamma=GAMMA), expected, atol=1e-6)


@given(batches, st.integers(1, 15))
@settings(max_examples=60, deadline=None)
def test_n_step_return_is_its_definition(columns: dict[str, Array], n_step: int) -> None:
    result = n_step_returns(columns, gamma=GAMMA, n_step=n_step)
    np.testing.assert_allclose(result, brute_force_n_step(columns, n_step=n_step), atol=1e-6)


@given(batches, st.data())
@settings(max_examples=60, deadline=None)
def test_cutting_into_fragments_changes_no_advantage(columns: dict[str, Array], data: Any) -> None:
    steps = columns[REWARD].shape[0]
    cuts = data.draw(st.lists(st.integers(1, steps), max_size=4, unique=True))
    edges = sorted({0, steps, *cuts})
    parts: list[Array] = []
    following_advantage: Array | None = None
    for begin, end in reversed(list(itertools.pairwise(edges))):
        part = generalized_advantages(
            cut(columns, begin, end), gamma=GAMMA, gae_lambda=0.9, next_advantage=following_advantage
        )
        parts.insert(0, part)
        following_advantage = part[0]
    whole = generalized_advantages(columns, gamma=GAMMA, gae_lambda=0.9)
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.permutations(range(5)), st.booleans())
@settings(max_examples=40, deadline=None)
def test_an_episode_in_a_batch_of_five_fragments_is_one_episode(
    seed: int, length: int, order: list[int], invalid: bool
) -> None:
    columns = learning.trajectory_columns(
        np.random.default_rng(seed), num_steps=5 * length, num_lanes=2, end_probability=0.1, invalid=invalid
    )
    fragments = [
        learning.make_fragment(cut(columns, i * length, (i + 1) * length), sequence=3 + i) for i in range(5)
    ]
    batch = stack_fragments([fragments[i] for i in order])
    advantages = batch_advantages(batch, gamma=GAMMA, gae_lambda=0.9).reshape(length, 5, 2)
    in_time = np.concatenate([advantages[:, order.index(i)] for i in range(5)])
    whole = generalized_advantages(columns, gamma=GAMMA, gae_lambda=0.9)
    np.testing.assert_allclose(in_time, whole, atol=1e-9)


def test_a_missing_fragment_cuts_the_trace() -> None:
    columns = learning.trajectory_columns(
        np.random.default_rng(0), num_steps=6, num_lanes=1, end_probability=0.0
    )
    first, last = (learning.make_fragment(cut(columns, i, i + 2), sequence=i) for i in (0, 4))
    batch = stack_fragments([first, last])
    result = batch_advantages(batch, gamma=GAMMA, gae_lambda=0.9)
    alone = generalized_advantages(first.columns, gamma=GAMMA, gae_lambda=0.9)
    np.testing.assert_allclose(result[:, :1], alone, atol=1e-9)
