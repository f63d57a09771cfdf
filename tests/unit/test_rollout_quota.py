"""A fragment with a quota holds the same transitions as the beginning of a whole one, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from fragment_rows import Maker, rows_of

from headrace.config.sections import EnvironmentConfig
from headrace.envs.validation import check_fragment
from headrace.rl.batch import stack_fragments
from headrace.rl.returns import batch_advantages, generalized_advantages
from headrace.types import (
    BOOTSTRAP_OBSERVATION,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    Fragment,
    PolicyVersion,
)

LENGTH, LANES = 16, 3
GAMMA, LAMBDA = 0.9, 0.8


def maker(environment_id: str = "environments:CountingEnv", length: int = LENGTH) -> Maker:
    return Maker(EnvironmentConfig(id=environment_id), fragment_length=length, num_lanes=LANES)


def make(maker: Maker, *quotas: int) -> list[Fragment]:
    """One good fragment with each quota."""
    fragments = []
    for steps in quotas:
        fragment = maker.rollout.run(PolicyVersion(1, 0), steps=steps)
        assert fragment is not None
        assert check_fragment(fragment, maker.spec, maker.config.validation) is None
        fragments.append(fragment)
    return fragments


@pytest.mark.parametrize("quota", [1, 5, 15])
def test_it_holds_exactly_the_transitions_of_a_fragment_of_that_length(quota: int) -> None:
    (padded,), (plain,) = make(maker(), quota), make(maker(length=quota), 0)
    assert padded.num_transitions == plain.num_transitions == quota * LANES

    def seen(fragment: Fragment) -> list[tuple[object, ...]]:
        return [(row.life, row.observation, row.reward, row.following) for row in rows_of(fragment)]

    assert seen(padded) == seen(plain)
    assert not padded.columns[VALID][quota:].any()
    for name in (OBSERVATION, REWARD, TERMINATED, TRUNCATED):
        assert not padded.columns[name][quota:].any(), "nothing is left behind after the last step"


@pytest.mark.parametrize("environment_id", ["environments:CountingEnv", "CartPole-v1"])
@pytest.mark.parametrize("quota", [1, 5, 15])
def test_its_advantages_are_those_of_a_fragment_of_that_length(quota: int, environment_id: str) -> None:
    (padded,), (plain,) = make(maker(environment_id), quota), make(maker(environment_id, quota), 0)
    advantages = generalized_advantages(padded.columns, gamma=GAMMA, gae_lambda=LAMBDA)
    expected = generalized_advantages(plain.columns, gamma=GAMMA, gae_lambda=LAMBDA)
    np.testing.assert_array_equal(advantages[:quota], expected)
    assert not advantages[quota:].any()


def test_beside_whole_fragments_each_transition_counts_once() -> None:
    short, whole = maker(), maker()
    (padded,), (full,) = make(short, 4), make(whole, 0)
    batch = stack_fragments([padded, full])
    assert batch.num_transitions == 4 * LANES + LENGTH * LANES == batch.columns[VALID].sum()
    together = batch_advantages(batch, gamma=GAMMA, gae_lambda=LAMBDA)
    for part, fragment in ((together[:, :LANES], padded), (together[:, LANES:], full)):
        alone = generalized_advantages(fragment.columns, gamma=GAMMA, gae_lambda=LAMBDA)
        np.testing.assert_array_equal(part, alone)


def test_episodes_go_on_in_the_next_fragment_as_if_there_had_been_no_quota() -> None:
    short, whole = maker(), maker()
    quotas = [3, 1, 7, 0, 5]
    pieces = make(short, *quotas)
    rows = [row for fragment in pieces for row in rows_of(fragment)]
    steps = sum(quota or LENGTH for quota in quotas)
    expected = [row for fragment in make(whole, 0, 0, 0) for row in rows_of(fragment)]
    for lane in range(LANES):
        mine = [(row.observation, row.following) for row in rows if row.life[0] == lane]
        assert mine == [(row.observation, row.following) for row in expected if row.life[0] == lane][:steps]
    assert pieces[-1].produced_through == len(rows) == short.rollout.counts.produced
    assert short.rollout.counts.open == 0


@pytest.mark.parametrize("quota", [0, LENGTH, LENGTH + 1, 10**6])
def test_a_quota_that_is_no_less_than_a_fragment_changes_nothing(quota: int) -> None:
    (fragment,) = make(maker(), quota)
    assert VALID not in fragment.columns
    (plain,) = make(maker(), 0)
    np.testing.assert_array_equal(
        fragment.columns[BOOTSTRAP_OBSERVATION], plain.columns[BOOTSTRAP_OBSERVATION]
    )


def test_a_quota_whose_every_step_is_discarded_is_sealed_all_the_same() -> None:
    environment = EnvironmentConfig(
        id="environments:PoisonEnv", kwargs={"kind": "nan_reward", "probability": 1.0}
    )
    poisoned = Maker(environment, fragment_length=LENGTH, num_lanes=LANES)
    (fragment,) = make(poisoned, 1)  # its permit is spent, so the learner must hear of it
    assert fragment.num_transitions == 0
    assert poisoned.rollout.counts.open == 0


@pytest.mark.parametrize(("quota", "steps"), [(0, LENGTH), (4, 4)])
def test_the_speed_is_of_the_steps_that_were_taken(quota: int, steps: int) -> None:
    acting = maker()
    ticks = iter(range(1000))
    acting.rollout._clock = lambda: float(next(ticks))
    (fragment,) = make(acting, quota)
    # The clock is read once before, twice a step, and once at the end.
    assert fragment.steps_per_s == steps / (2 * steps + 1)
