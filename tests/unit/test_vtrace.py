"""V-trace: exact targets for every kind of end, and what it comes to when nothing lags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.rl.returns import discounted_returns, generalized_advantages
from headrace.rl.vtrace import Clips, VTrace, vtrace
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
    Batch,
    FragmentId,
    SamplerIdentity,
)

GAMMA = 0.9
CLIPS = Clips(rho_bar=1.0, c_bar=1.0, policy_rho_bar=1.0)
SAMPLER = SamplerIdentity("sampler-0", 0)


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
        VALUE: np.array(values, np.float64)[:, None],
        TERMINATED: flags(("terminated", "both")),
        TRUNCATED: flags(("truncated", "both")),
        BOOTSTRAP_VALUE: np.array([bootstrap], np.float64),
        FINAL_INDEX: np.array(sorted(ends), np.int32),
        FINAL_VALUE: np.array([ends[t][1] for t in sorted(ends)], np.float64),
    }


def traced(columns: dict[str, Array], ratios: list[float], **changes: Any) -> VTrace:
    """Of one fragment of one lane, whose importance ratios are these."""
    batch = Batch(columns, columns[REWARD].size, (0,), (FragmentId(SAMPLER, 0),))
    options: dict[str, Any] = {"gamma": GAMMA, "trace_lambda": 1.0, "clips": CLIPS, **changes}
    return vtrace(batch, np.log(np.array(ratios))[:, None], **options)


ENDS: list[dict[int, tuple[str, float]]] = [
    {},
    {1: ("terminated", 0.0)},
    {1: ("truncated", 7.0)},
    {1: ("both", 7.0)},
    {2: ("truncated", 7.0)},
]


@pytest.mark.parametrize("ends", ENDS)
def test_where_nothing_lags_the_target_is_the_return(ends: dict[int, tuple[str, float]]) -> None:
    columns = lane([1, 2, 3], [0.5, -1.0, 2.0], bootstrap=10.0, ends=ends)
    seen = traced(columns, [1, 1, 1])
    expected = discounted_returns(columns, gamma=GAMMA)
    assert seen.target == pytest.approx(expected)
    assert seen.advantage == pytest.approx(expected - columns[VALUE])
    assert (seen.weight == 1.0).all()


@pytest.mark.parametrize("trace_lambda", [0.0, 0.5, 0.95])
def test_where_nothing_lags_the_advantage_is_the_generalized_one(trace_lambda: float) -> None:
    columns = lane([1, 2, 3, 4], [0.5, -1.0, 2.0, 1.0], bootstrap=10.0, ends={1: ("truncated", 7.0)})
    seen = traced(columns, [1, 1, 1, 1], trace_lambda=trace_lambda)
    expected = generalized_advantages(columns, gamma=GAMMA, gae_lambda=trace_lambda)
    assert seen.advantage == pytest.approx(expected)


def test_two_steps_by_hand_with_clips_of_their_own() -> None:
    columns = lane([1, 2], [0.5, 0.25], bootstrap=4.0)
    seen = traced(columns, [3.0, 0.5], clips=Clips(rho_bar=2.0, c_bar=1.5, policy_rho_bar=2.5))
    last = 0.5 * (2 + GAMMA * 4.0 - 0.25)
    first = 2.0 * (1 + GAMMA * 0.25 - 0.5) + GAMMA * 1.5 * last
    assert seen.target[:, 0] == pytest.approx([0.5 + first, 0.25 + last])
    assert seen.advantage[:, 0] == pytest.approx(
        [1 + GAMMA * (0.25 + last) - 0.5, 2 + GAMMA * 4.0 - 0.25]  # the bootstrap itself is not corrected
    )
    assert seen.weight[:, 0] == pytest.approx([2.5, 0.5])


def test_an_action_that_the_policy_would_never_take_teaches_nothing_and_stops_the_trace() -> None:
    columns = lane([1, 100, 1], [0.5, 0.25, 0.125], bootstrap=4.0)
    seen = traced(columns, [1.0, 1e-30, 1.0])
    assert seen.target[:2, 0] == pytest.approx([1 + GAMMA * 0.25, 0.25])
    assert seen.weight[1, 0] == pytest.approx(0.0)


def test_huge_ratios_are_clipped_before_they_overflow() -> None:
    columns = lane([1, 2], [0.5, 0.25], bootstrap=4.0)
    batch = Batch(columns, 2, (0,), (FragmentId(SAMPLER, 0),))
    seen = vtrace(batch, np.array([[1e4], [1e4]]), gamma=GAMMA, trace_lambda=1.0, clips=CLIPS)
    assert seen.target == pytest.approx(discounted_returns(columns, gamma=GAMMA))


def test_steps_that_are_no_transitions_may_hold_anything() -> None:
    columns = lane([1, np.nan, 3], [0.5, np.nan, 2.0], bootstrap=10.0, ends={0: ("truncated", 7.0)})
    columns[VALID] = np.array([[True], [False], [True]])
    seen = traced(columns, [1.0, np.nan, 1.0])
    assert seen.target[:, 0] == pytest.approx([1 + GAMMA * 7.0, 0.0, 3 + GAMMA * 10.0])
    assert (seen.advantage[1], seen.weight[1]) == (0.0, 0.0)


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 12),
    st.floats(0, 1),
    st.tuples(*[st.floats(0.1, 3)] * 3),
)
def test_it_is_the_recursion_of_the_paper(
    seed: int, steps: int, trace_lambda: float, bars: tuple[float, float, float]
) -> None:
    rng = np.random.default_rng(seed)
    kinds = ["", "", "", "terminated", "truncated", "both"]
    ends = {t: (kind, float(rng.normal())) for t in range(steps) if (kind := str(rng.choice(kinds)))}
    rewards, values = rng.normal(size=steps), rng.normal(size=steps)
    columns = lane(rewards.tolist(), values.tolist(), bootstrap=float(rng.normal()), ends=ends)
    ratios = np.exp(rng.normal(size=steps))
    clips = Clips(*bars)
    seen = traced(columns, ratios.tolist(), trace_lambda=trace_lambda, clips=clips)
    error = 0.0
    for t in range(steps - 1, -1, -1):
        kind, final = ends.get(t, ("", 0.0))
        following = columns[BOOTSTRAP_VALUE][0] if t == steps - 1 else values[t + 1]
        following = {"truncated": final, "terminated": 0.0, "both": 0.0}.get(kind, following)
        carried = 0.0 if kind else error
        delta = float(columns[REWARD][t, 0]) + GAMMA * following - values[t]
        assert seen.advantage[t, 0] == pytest.approx(delta + GAMMA * trace_lambda * carried, abs=1e-9)
        trace = trace_lambda * min(clips.c_bar, ratios[t])
        error = min(clips.rho_bar, ratios[t]) * delta + GAMMA * trace * carried
        assert seen.target[t, 0] == pytest.approx(values[t] + error, abs=1e-9)
        assert seen.weight[t, 0] == pytest.approx(min(clips.policy_rho_bar, ratios[t]))


def test_an_episode_has_the_same_targets_in_one_fragment_or_in_two() -> None:
    rng = np.random.default_rng(3)
    rewards, values = rng.normal(size=6).tolist(), rng.normal(size=6).tolist()
    log_ratio = rng.normal(size=(6, 1))
    whole = lane(rewards, values, bootstrap=2.0)
    options: dict[str, Any] = {"gamma": GAMMA, "trace_lambda": 0.9, "clips": CLIPS}
    one = vtrace(Batch(whole, 6, (0,), (FragmentId(SAMPLER, 0),)), log_ratio, **options)
    parts = [
        lane(rewards[:3], values[:3], bootstrap=values[3]),
        lane(rewards[3:], values[3:], bootstrap=2.0),
    ]
    columns = {
        name: np.concatenate([part[name] for part in parts], axis=parts[0][name].ndim - 1)
        for name in parts[0]
    }
    ids = (FragmentId(SAMPLER, 0), FragmentId(SAMPLER, 1))
    two = vtrace(Batch(columns, 6, (0, 0), ids), log_ratio.reshape(2, 3).T, **options)
    for name in ("target", "advantage", "weight"):
        assert getattr(two, name).T.reshape(-1) == pytest.approx(getattr(one, name)[:, 0])
