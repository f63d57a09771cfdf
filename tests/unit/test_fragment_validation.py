"""A fragment that isn't fit to be learned from is refused with a reason that says what and where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from environments import SPACES
from fragment_builder import good_fragment, with_columns

from headrace.config.sections import ValidationConfig
from headrace.envs.spec import EnvironmentSpec, spec_of
from headrace.envs.validation import check_fragment
from headrace.types import Fragment

CARTPOLE = EnvironmentSpec(
    "CartPole-v1",
    spec_of(gym.make("CartPole-v1").observation_space),
    spec_of(gym.make("CartPole-v1").action_space),
)
VALIDATION = ValidationConfig()


def check(fragment: Fragment, spec: EnvironmentSpec = CARTPOLE, **validation: Any) -> tuple[str, str] | None:
    return check_fragment(fragment, spec, ValidationConfig(**validation))


def changed(name: str, place: tuple[int, ...], value: Any) -> Fragment:
    fragment = good_fragment(CARTPOLE)
    column = fragment.columns[name].copy()
    column[place] = value
    return replace(fragment, columns={**fragment.columns, name: column})


@pytest.mark.parametrize("kind", SPACES)
def test_good_fragments_of_every_space_pass(kind: str) -> None:
    spec = EnvironmentSpec(kind, spec_of(SPACES[kind][0]), spec_of(SPACES[kind][1]))
    assert check(good_fragment(spec), spec) is None


@pytest.mark.parametrize("ended", [(), (0,), (20,), tuple(range(21))])
@pytest.mark.parametrize("shape", [(7, 3)])
def test_any_number_of_ends(ended: tuple[int, ...], shape: tuple[int, int]) -> None:
    assert check(good_fragment(CARTPOLE, steps=shape[0], lanes=shape[1], ended=ended)) is None


def test_one_step_of_one_lane() -> None:
    assert check(good_fragment(CARTPOLE, steps=1, lanes=1, ended=())) is None


REQUIRED = [
    "observation", "action", "reward", "terminated", "truncated", "behavior_log_prob", "value",
    "bootstrap_observation", "bootstrap_value", "final_index", "final_observation", "final_value",
    "lane_seed", "lane_episode", "lane_step",
]  # fmt: skip


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_column_is_named(name: str) -> None:
    fragment = good_fragment(CARTPOLE)
    columns = {key: column for key, column in fragment.columns.items() if key != name}
    assert check(replace(fragment, columns=columns)) == ("missing_column", f"{name} is missing")


@pytest.mark.parametrize("name", REQUIRED)
def test_a_wrong_dtype_is_named(name: str) -> None:
    column = good_fragment(CARTPOLE).columns[name]
    other = np.float64 if column.dtype != np.float64 else np.float32
    refusal = check(with_columns(good_fragment(CARTPOLE), **{name: column.astype(other)}))
    assert refusal is not None
    assert refusal[0] == "wrong_dtype"
    assert refusal[1].startswith(name)


@pytest.mark.parametrize("name", REQUIRED)
def test_a_wrong_shape_is_refused(name: str) -> None:
    column = good_fragment(CARTPOLE).columns[name]
    refusal = check(with_columns(good_fragment(CARTPOLE), **{name: column[1:]}))
    assert refusal is not None
    assert refusal[0] == "wrong_shape"


FLOATS = ["observation", "reward", "behavior_log_prob", "value", "bootstrap_observation", "bootstrap_value",
          "final_observation", "final_value", "episode/return"]  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FLOATS)
def test_one_number_that_is_not_finite_is_found_and_placed(name: str, value: float) -> None:
    place = tuple(size - 1 for size in good_fragment(CARTPOLE).columns[name].shape)
    refusal = check(changed(name, place, value))
    assert refusal is not None
    assert refusal[0] == "non_finite"
    assert refusal[1].startswith(name)
    assert str(value).lstrip("-") in refusal[1]


def test_where_a_bad_observation_is() -> None:
    refusal = check(changed("observation", (5, 2, 3), np.nan))
    assert refusal == ("non_finite", "observation[3] at step 5, lane 2, is nan")


def test_large_numbers_that_overflow_their_sum_are_not_refused() -> None:
    fragment = good_fragment(CARTPOLE)
    huge = np.full_like(fragment.columns["value"], 3e38)
    assert check(with_columns(fragment, value=huge)) is None


@pytest.mark.parametrize(
    ("reward", "reason"), [(1e9, None), (-1e9, None), (2e9, "out_of_range"), (-2e9, "out_of_range")]
)
def test_the_reward_limit(reward: float, reason: str | None) -> None:
    refusal = check(changed("reward", (0, 0), reward))
    assert (refusal and refusal[0]) == reason


@pytest.mark.parametrize("name", ["observation", "bootstrap_observation", "final_observation"])
def test_an_observation_outside_its_space(name: str) -> None:
    refusal = check(changed(name, (-1,) * good_fragment(CARTPOLE).columns[name].ndim, 2e9))
    assert refusal is not None
    assert refusal[0] == "out_of_range"
    place = (*(-1,) * (good_fragment(CARTPOLE).columns[name].ndim - 1), 0)
    refusal = check(changed(name, place, 5.0))
    assert refusal is not None
    assert refusal[0] == "outside_space"
    assert check(changed(name, place, 4.80005)) is None
    assert check(changed(name, place, 5.0), check_space=False) is None


@pytest.mark.parametrize("value", [-1, 2])
def test_a_discrete_action_outside_its_space(value: int) -> None:
    refusal = check(changed("action", (3, 1), value))
    assert refusal is not None
    assert refusal[0] == "outside_space"
    assert refusal[1].startswith("action at step 3, lane 1,")


def test_a_continuous_action_may_lie_outside_but_must_be_finite() -> None:
    spec = EnvironmentSpec("c", CARTPOLE.observation, spec_of(gym.spaces.Box(-1, 1, (2,), np.float32)))
    fragment = good_fragment(spec)
    assert check(with_columns(fragment, action=fragment.columns["action"] * 50), spec) is None
    nan = np.full_like(fragment.columns["action"], np.nan)
    refusal = check(with_columns(fragment, action=nan), spec)
    assert refusal is not None
    assert refusal[0] == "non_finite"


def test_a_byte_that_is_no_bool() -> None:
    flags = good_fragment(CARTPOLE).columns["truncated"].copy()
    flags.view(np.uint8)[0, 0] = 2
    refusal = check(with_columns(good_fragment(CARTPOLE), truncated=flags))
    assert refusal is not None
    assert refusal[0] == "wrong_dtype"


@pytest.mark.parametrize("index", [(11, 4), (4, 4), (4, 12), (4, 21), (-1, 4)])
def test_final_index_must_be_the_ended_rows_in_order(index: tuple[int, ...]) -> None:
    refusal = check(with_columns(good_fragment(CARTPOLE), final_index=np.array(index, np.int32)))
    assert refusal is not None
    assert refusal[0] == "inconsistent"


def test_an_end_without_a_final_row() -> None:
    refusal = check(changed("terminated", (6, 2), True))
    assert refusal is not None
    assert refusal[0] == "inconsistent"


def test_the_count_of_transitions_must_be_that_of_the_valid_steps() -> None:
    fragment = good_fragment(CARTPOLE)
    valid = np.ones((7, 3), np.bool_)
    valid[0, 0] = False
    assert check(replace(with_columns(fragment, valid=valid), num_transitions=20)) is None
    refusal = check(with_columns(fragment, valid=valid))
    assert refusal is not None
    assert refusal[0] == "inconsistent"
    assert check(replace(fragment, num_transitions=22)) is not None


def test_invalid_steps_need_not_lie_inside_the_space_but_must_be_finite() -> None:
    fragment = good_fragment(CARTPOLE)
    valid = np.ones((7, 3), np.bool_)
    valid[0, 0] = False
    observation = fragment.columns["observation"].copy()
    observation[0, 0, 0] = 100.0
    outside = replace(with_columns(fragment, valid=valid, observation=observation), num_transitions=20)
    assert check(outside) is None
    observation = observation.copy()
    observation[0, 0, 0] = np.nan
    assert check(replace(with_columns(outside, observation=observation), num_transitions=20)) is not None


def test_normalizer_moments() -> None:
    fragment = good_fragment(CARTPOLE)
    good: dict[str, npt.NDArray[Any]] = {
        "normalizer/leaf/count": np.array(3.0),
        "normalizer/leaf/mean": -np.ones(4),
        "normalizer/leaf/m2": np.ones(4),
    }
    assert check(replace(fragment, columns={**fragment.columns, **good})) is None
    for name, bad in (("m2", -np.ones(4)), ("count", np.array(-1.0)), ("mean", np.full(4, np.nan))):
        columns = {**fragment.columns, **good, f"normalizer/leaf/{name}": bad}
        assert check(replace(fragment, columns=columns)) is not None


def test_an_unknown_column_of_objects() -> None:
    refusal = check(with_columns(good_fragment(CARTPOLE), extra=np.array([None, {}], object)))
    assert refusal == ("wrong_dtype", "extra has dtype object")
