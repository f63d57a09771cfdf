"""Fragments hold exactly what happened: every transition once, none across an episode, nothing discarded."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from fragment_rows import Maker, Row, rows_of

from headrace.config.sections import EnvironmentConfig
from headrace.rl.returns import generalized_advantages
from headrace.types import (
    FINAL_INDEX,
    LANE_STEP,
    NORMALIZER,
    OBSERVATION,
    REWARD,
    TRUNCATED,
    VALID,
    Array,
    Fragment,
    PolicyVersion,
)

STEPS = 448  # per lane: a multiple of every fragment length below


def counting(end: str, mode: str) -> EnvironmentConfig:
    if mode == "same_step":
        return EnvironmentConfig(id="environments:CountingEnv", kwargs={"end": end})
    kwargs = {"env": "CountingEnv", "autoreset": mode, "opaque": True, "end": end}
    return EnvironmentConfig(id="vectors:make", vectorization="native", kwargs=kwargs)


def check_rows(rows: list[Row], end: str) -> None:
    """Everything that CountingEnv promises about a stored transition."""
    for row in rows:
        (episode, t), (next_episode, next_t) = row.observation, row.following
        assert (next_episode, next_t) == (episode, t + 1), "a pair crosses an episode"
        assert row.reward == t
        assert not (row.terminated and row.truncated), "terminated wins"
        if row.terminated or row.truncated:
            assert end == "mixed" or row.terminated == (end in ("terminated", "both"))


@pytest.mark.parametrize("num_lanes", [1, 5])
@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
@pytest.mark.parametrize("end", ["terminated", "truncated", "both", "mixed"])
def test_what_is_trained_is_exactly_what_was_produced(
    end: str, mode: str, length: int, num_lanes: int
) -> None:
    maker = Maker(counting(end, mode), fragment_length=length, num_lanes=num_lanes)
    rows = [row for fragment in maker.make(STEPS // length) for row in rows_of(fragment)]
    check_rows(rows, end)
    assert Counter((row.life, row.observation) for row in rows).most_common(1)[0][1] == 1
    assert len(rows) == maker.rollout.counts.produced == maker.rollout.counts.sealed
    for lane in range(num_lanes):
        mine = [row for row in rows if row.life[0] == lane]
        for before, after in itertools.pairwise(mine):
            if before.terminated or before.truncated:
                assert after.observation == (before.observation[0] + 1, 0), "an episode's start is missing"
            else:
                assert after.observation == before.following, "a step is missing"
    maker.lanes.close()


def test_one_episode_in_one_fragment_or_in_five_gives_the_same_advantages() -> None:
    def advantages(length: int, count: int) -> Array:
        environment = EnvironmentConfig(
            id="environments:CountingEnv", kwargs={"min_length": 50, "max_length": 50, "end": "truncated"}
        )
        maker = Maker(environment, fragment_length=length, num_lanes=1)
        parts = [
            generalized_advantages(fragment.columns, gamma=0.9, gae_lambda=0.0)
            for fragment in maker.make(count)
        ]
        maker.lanes.close()
        return np.concatenate(parts)

    np.testing.assert_array_equal(advantages(50, 1), advantages(10, 5))


def test_a_step_cap_is_a_truncation_with_its_true_final_observation() -> None:
    environment = EnvironmentConfig(
        id="environments:CountingEnv", kwargs={"min_length": 100, "max_length": 100}, max_episode_steps=10
    )
    maker = Maker(environment, fragment_length=25, num_lanes=2)
    rows = [row for fragment in maker.make(4) for row in rows_of(fragment)]
    ends = [row for row in rows if row.truncated]
    assert len(ends) == 2 * 10
    assert {row.following[1] for row in ends} == {10.0}
    assert not any(row.terminated for row in rows)
    maker.lanes.close()


POISON = ("nan_reward", "inf_reward", "nan_observation", "huge_reward", "wrong_shape", "wrong_dtype")


@pytest.mark.parametrize("kind", [*POISON, "outside_space"])
def test_nothing_poisoned_is_sealed_and_every_discard_is_counted(kind: str) -> None:
    environment = EnvironmentConfig(
        id="environments:PoisonEnv", kwargs={"kind": kind, "probability": 0.02, "end": "mixed"}
    )
    maker = Maker(environment, fragment_length=16, num_lanes=4)
    rows = [row for fragment in maker.make(30) for row in rows_of(fragment)]
    counts = maker.rollout.counts
    assert maker.discards
    assert all(np.isfinite(row.reward) and np.isfinite(row.observation).all() for row in rows)
    check_rows(rows, "mixed")
    assert counts.produced == counts.sealed + counts.discarded.total()
    assert counts.sealed == len(rows)
    assert set(counts.discarded) == {discard.reason for discard in maker.discards}
    maker.lanes.close()


@pytest.mark.parametrize("kind", ["raise_step", "raise_reset"])
def test_a_fault_voids_its_own_episode_only(kind: str) -> None:
    environment = EnvironmentConfig(
        id="environments:FaultyEnv", kwargs={"kind": kind, "probability": 0.01, "end": "mixed"}
    )
    maker = Maker(environment, fragment_length=16, num_lanes=4)
    fragments = maker.make(40)
    rows = [row for fragment in fragments for row in rows_of(fragment)]
    assert any(discard.reason.startswith("fault_raise") for discard in maker.discards)
    assert maker.rollout.counts.produced == len(rows) + maker.rollout.counts.discarded.total()
    for row in rows:
        assert row.following == (row.observation[0], row.observation[1] + 1)
    maker.lanes.close()


def test_sequences_have_no_gaps_and_say_what_was_sealed_before_them() -> None:
    environment = EnvironmentConfig(
        id="environments:PoisonEnv", kwargs={"kind": "nan_reward", "probability": 0.05}
    )
    maker = Maker(environment, fragment_length=8, num_lanes=3)
    through = 0
    for sequence, fragment in enumerate(maker.make(20)):
        through += fragment.num_transitions
        assert fragment.id.sequence == sequence
        assert fragment.produced_through == through
    maker.lanes.close()


def stopped_after(maker: Maker, steps: int) -> Fragment | None:
    asked = iter(range(1000))
    return maker.rollout.run(PolicyVersion(1, 0), stop=lambda: next(asked) >= steps)


def test_a_stop_seals_what_is_there_and_bootstraps_its_last_row() -> None:
    environment = EnvironmentConfig(
        id="environments:CountingEnv", kwargs={"min_length": 40, "max_length": 40}
    )
    maker = Maker(environment, fragment_length=16, num_lanes=3)
    fragment = stopped_after(maker, 5)
    assert fragment is not None
    assert fragment.columns[REWARD].shape == (16, 3), "the size is fixed, whatever is in it"
    assert fragment.columns[VALID].sum() == fragment.num_transitions == 15
    rows = rows_of(fragment)
    assert [row.following[1] - row.observation[1] for row in rows] == [1.0] * 15
    assert fragment.columns[FINAL_INDEX].tolist() == [12, 13, 14]
    assert fragment.columns[TRUNCATED][4].all()
    assert maker.rollout.counts.open == 0
    maker.lanes.close()


def test_a_stop_before_the_first_step_seals_nothing() -> None:
    maker = Maker(EnvironmentConfig(id="CartPole-v1"), fragment_length=16, num_lanes=2)
    assert stopped_after(maker, 0) is None
    assert maker.rollout.counts.produced == 0
    maker.lanes.close()


def test_normalizer_deltas_are_of_the_valid_observations_of_the_fragment() -> None:
    environment = EnvironmentConfig(
        id="environments:PoisonEnv", kwargs={"kind": "nan_observation", "probability": 0.05}
    )
    maker = Maker(environment, fragment_length=32, num_lanes=4, policy={"normalize_observation": True})
    for fragment in maker.make(5):
        valid = fragment.columns.get(VALID, np.ones((32, 4), bool))
        seen = fragment.columns[OBSERVATION][valid].astype(np.float64)
        assert fragment.columns[f"{NORMALIZER}//count"] == len(seen)
        np.testing.assert_allclose(fragment.columns[f"{NORMALIZER}//mean"], seen.mean(0))
        np.testing.assert_allclose(fragment.columns[f"{NORMALIZER}//m2"], ((seen - seen.mean(0)) ** 2).sum(0))
    maker.lanes.close()


def test_provenance_says_where_the_lanes_stood_at_the_first_step() -> None:
    environment = EnvironmentConfig(
        id="environments:CountingEnv", kwargs={"min_length": 10, "max_length": 10}
    )
    maker = Maker(environment, fragment_length=7, num_lanes=1)
    fragments = maker.make(3)
    for fragment in fragments:
        episode, t = fragment.columns[OBSERVATION][0, 0]
        assert fragment.columns["lane_episode"][0] == episode
        assert fragment.columns[LANE_STEP][0] == t
    maker.lanes.close()
