"""What learners hold in common: taken from one algorithm and loaded into another, it acts the same."""

from __future__ import annotations

from collections.abc import Mapping

import environments
import learning
import numpy as np
import pytest
import replaying
from gymnasium import spaces

from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec
from headrace.nets.actor import make_actor
from headrace.rl.algorithm import Algorithm, ReplayAlgorithm, make_algorithm, make_replay_algorithm
from headrace.rl.batch import stack_fragments
from headrace.types import Array

ON_POLICY = ("ppo", "a2c", "impala", "appo", "a3c")
OFF_POLICY = ("dqn", "ddpg", "td3", "sac")
BOX, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)
ON_POLICY_SPACE = environments.SPACES["vector_discrete"][0]


def spec_of(name: str) -> EnvironmentSpec:
    if name in ON_POLICY:
        return learning.case_spec("vector_discrete")
    return learning.make_spec(BOX, CHOICE if name == "dqn" else ACTIONS)


def config_of(name: str, seed: int) -> Config:
    if name in ON_POLICY:
        return learning.make_config(
            name,
            run={"seed": seed},
            policy={"hidden": [8, 8], "normalize_observation": True},
            algorithm={"normalize_value": True},
        )
    return learning.make_config(name, run={"seed": seed}, policy={"hidden": [8, 8], "activation": "relu"})


def make(name: str, seed: int = 1) -> Algorithm | ReplayAlgorithm:
    maker = make_algorithm if name in ON_POLICY else make_replay_algorithm
    return maker(config_of(name, seed), spec_of(name))


def learn(name: str, algorithm: Algorithm | ReplayAlgorithm, seed: int = 0) -> None:
    """One update, the same for all who are told the same seed and hold the same parameters."""
    if name in OFF_POLICY:
        batch = replaying.random_batch(BOX, CHOICE if name == "dqn" else ACTIONS, seed=seed)
        algorithm.learn(batch, env_steps=10, progress=0.0)  # type: ignore[union-attr]
        return
    config = config_of(name, 1)
    actor = make_actor(config, spec_of(name))
    actor.load(algorithm.acting_parameters())
    fragment = learning.acted_fragment(actor, config, ON_POLICY_SPACE, seed=seed)
    algorithm.update(stack_fragments([fragment], [0]), progress=0.0)  # type: ignore[union-attr]


def assert_same(first: Mapping[str, Array], second: Mapping[str, Array]) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


@pytest.mark.parametrize("name", [*ON_POLICY, *OFF_POLICY])
def test_what_is_loaded_is_what_is_acted_with(name: str) -> None:
    source, target = make(name, seed=1), make(name, seed=2)
    learn(name, source)
    before = target.acting_parameters()
    target.shared.load_values(source.shared.values())
    target.shared.load_moments(source.shared.moments.columns())
    after, expected = target.acting_parameters(), source.acting_parameters()
    assert any(not np.array_equal(before[key], after[key]) for key in before)
    explored = {key for key in before if key.startswith("exploration/")}
    assert_same(
        {key: after[key] for key in after.keys() - explored},
        {key: expected[key] for key in expected.keys() - explored},
    )


@pytest.mark.parametrize("name", [*ON_POLICY, *OFF_POLICY])
def test_loading_ones_own_changes_no_bit_of_what_comes_next(name: str) -> None:
    loaded, untouched = make(name), make(name)
    for algorithm in (loaded, untouched):
        learn(name, algorithm)
    loaded.shared.load_values(loaded.shared.values())
    loaded.shared.load_moments(loaded.shared.moments.columns())
    for algorithm in (loaded, untouched):
        learn(name, algorithm, seed=1)
    assert_same(loaded.acting_parameters(), untouched.acting_parameters())
    assert_same(loaded.training_state(), untouched.training_state())


@pytest.mark.parametrize(
    ("name", "besides"),
    [
        *((name, set()) for name in (*ON_POLICY, "dqn")),
        ("ddpg", {"critics/values"}),
        ("td3", {"critics/values"}),
        ("sac", {"critics/values", "log_alpha"}),
    ],
)
def test_all_that_takes_gradient_steps_is_shared(name: str, besides: set[str]) -> None:
    source, target = make(name, seed=1), make(name, seed=2)
    learn(name, source)
    target.shared.load_values(source.shared.values())
    expected = {**source.acting_parameters(), **source.training_state()}
    loaded = {**target.acting_parameters(), **target.training_state()}
    shared = {key for key in expected if key.startswith("network/") and key in source.acting_parameters()}
    assert target.shared.tensors.keys() == shared | besides
    for key in shared | besides:
        np.testing.assert_array_equal(loaded[key], expected[key], err_msg=key)


@pytest.mark.parametrize("name", [*ON_POLICY, *OFF_POLICY])
def test_values_are_a_copy_in_the_order_of_the_layout(name: str) -> None:
    algorithm = make(name)
    shared = algorithm.shared
    values = shared.values()
    for key, part in shared.layout.split(values).items():
        np.testing.assert_array_equal(part, shared.tensors[key].detach().numpy(), err_msg=key)
    kept = values.copy()
    learn(name, algorithm)
    np.testing.assert_array_equal(values, kept)


def test_a_vector_of_another_length_is_refused() -> None:
    shared = make("a2c").shared
    with pytest.raises(ValueError, match="numbers for tensors of"):
        shared.load_values(shared.values()[:-1])
