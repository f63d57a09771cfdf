"""On-policy algorithms: every kind of space, exact save and load, determinism, poison, schedules."""

from __future__ import annotations

from typing import Any

import environments
import gymnasium as gym
import learning
import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec
from headrace.errors import ConfigurationError
from headrace.nets.actor import make_actor
from headrace.rl.algorithm import Algorithm, make_algorithm
from headrace.rl.batch import stack_fragments
from headrace.types import OBSERVATION, REWARD, VALID, Array, Batch

NAMES = ("ppo", "a2c", "impala", "appo", "a3c")
CASES = [(name, kind) for name in NAMES for kind in environments.SPACES]
ALL_OPTIONS: dict[str, Any] = {"normalize_value": True, "learning_rate_schedule": "linear"}


def full_config(name: str, *, seed: int = 1, **algorithm: Any) -> Config:
    """Everything that has state is switched on."""
    minibatches = {"epochs": 2, "minibatch_size": 12} if name in ("ppo", "appo") else {}
    return learning.make_config(
        name,
        run={"seed": seed},
        policy={"normalize_observation": True},
        algorithm={**minibatches, **ALL_OPTIONS, **algorithm},
    )


def make_batch(
    algorithm: Algorithm, config: Config, spec: EnvironmentSpec, space: gym.Space[Any], *, seed: int
) -> Batch:
    actor = make_actor(config, spec)
    actor.load(algorithm.acting_parameters())
    fragments = [
        learning.acted_fragment(
            actor, config, space, num_steps=6, num_lanes=3, seed=10 * seed + i, sequence=i
        )
        for i in range(2)
    ]
    return stack_fragments(fragments, [0, 0])


def assert_same(first: dict[str, Array], second: dict[str, Array]) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype, name
        assert np.array_equal(array, second[name]), name


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_one_update_on_every_kind_of_space_then_save_and_go_on_bit_for_bit(name: str, kind: str) -> None:
    config, spec = full_config(name), learning.case_spec(kind)
    space = environments.SPACES[kind][0]
    never_interrupted = make_algorithm(config, spec)
    initial = never_interrupted.acting_parameters()
    metrics = never_interrupted.update(
        make_batch(never_interrupted, config, spec, space, seed=0), progress=0.0
    )
    assert metrics["non_finite"] == 0
    assert all(np.isfinite(value) for value in metrics.values())
    changed = never_interrupted.acting_parameters()
    assert any(not np.array_equal(initial[key], changed[key]) for key in initial)

    resumed = make_algorithm(full_config(name, seed=99), spec)
    resumed.load(never_interrupted.acting_parameters(), never_interrupted.training_state())
    second = make_batch(never_interrupted, config, spec, space, seed=1)
    for algorithm in (never_interrupted, resumed):
        algorithm.update(second, progress=0.5)
    assert_same(never_interrupted.acting_parameters(), resumed.acting_parameters())
    assert_same(never_interrupted.training_state(), resumed.training_state())


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_bits_other_seed_others(name: str) -> None:
    spec, space = learning.case_spec("vector_discrete"), environments.SPACES["vector_discrete"][0]
    results = []
    for seed in (1, 1, 2):
        config = full_config(name, seed=seed)
        algorithm = make_algorithm(config, spec)
        for update in range(3):
            algorithm.update(make_batch(algorithm, config, spec, space, seed=update), progress=0.0)
        results.append(algorithm.acting_parameters())
    assert_same(results[0], results[1])
    assert not np.array_equal(results[0]["network/weights.0"], results[2]["network/weights.0"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("poison", "normalize_value"), [(np.nan, True), (np.inf, True), (1e30, False)])
def test_a_non_finite_step_is_skipped_and_counted(name: str, poison: float, normalize_value: bool) -> None:
    # One poisoned reward spoils the minibatches that hold it; what is learned stays finite.
    config = full_config(name, normalize_value=normalize_value)
    spec, space = learning.case_spec("vector_discrete"), environments.SPACES["vector_discrete"][0]
    algorithm = make_algorithm(config, spec)
    batch = make_batch(algorithm, config, spec, space, seed=0)
    batch.columns[REWARD][2, 1] = poison
    metrics = algorithm.update(batch, progress=0.0)
    assert metrics["non_finite"] >= 1
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(np.isfinite(array).all() for array in algorithm.acting_parameters().values())
    assert all(np.isfinite(array).all() for array in algorithm.training_state().values())
    assert (
        algorithm.update(make_batch(algorithm, config, spec, space, seed=1), progress=0.0)["non_finite"] == 0
    )


@pytest.mark.parametrize("name", NAMES)
def test_void_steps_teach_nothing(name: str) -> None:
    config, spec = full_config(name), learning.case_spec("vector_discrete")
    space = environments.SPACES["vector_discrete"][0]
    results = []
    for filler in (0.0, 1e6):
        algorithm = make_algorithm(config, spec)
        batch = make_batch(algorithm, config, spec, space, seed=0)
        valid = np.ones(batch.columns[REWARD].shape, np.bool_)
        valid[:2, 1] = False
        columns = {**batch.columns, VALID: valid}
        columns[REWARD][~valid] = filler
        columns[OBSERVATION][~valid] = filler
        algorithm.update(Batch(columns, int(valid.sum())), progress=0.0)
        results.append(algorithm.acting_parameters())
    assert_same(results[0], results[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_a_single_valid_step_changes_no_weight(name: str) -> None:
    config, spec = full_config(name), learning.case_spec("vector_discrete")
    algorithm = make_algorithm(config, spec)
    batch = make_batch(algorithm, config, spec, environments.SPACES["vector_discrete"][0], seed=0)
    void = {**batch.columns, VALID: np.zeros(batch.columns[REWARD].shape, np.bool_)}
    before = algorithm.acting_parameters()
    metrics = algorithm.update(Batch(void, 0), progress=0.0)
    after = algorithm.acting_parameters()
    assert metrics["non_finite"] == 0
    assert all(np.array_equal(before[key], after[key]) for key in before if key.startswith("network/"))


def test_linear_schedule_falls_to_zero() -> None:
    config, spec = full_config("ppo"), learning.case_spec("vector_discrete")
    space = environments.SPACES["vector_discrete"][0]
    algorithm = make_algorithm(config, spec)
    batch = make_batch(algorithm, config, spec, space, seed=0)
    assert algorithm.update(batch, progress=0.25)["learning_rate"] == pytest.approx(0.75 * 3e-4)
    before = algorithm.acting_parameters()
    assert algorithm.update(batch, progress=1.0)["learning_rate"] == 0.0
    after = algorithm.acting_parameters()
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith("network/"))


def test_target_kl_ends_the_epochs_early() -> None:
    spec, space = learning.case_spec("vector_discrete"), environments.SPACES["vector_discrete"][0]
    config = full_config("ppo", epochs=10, target_kl=1e-9, learning_rate=0.1)
    algorithm = make_algorithm(config, spec)
    assert algorithm.update(make_batch(algorithm, config, spec, space, seed=0), progress=0.0)["epochs"] < 10


def test_a_policy_step_is_bounded_by_the_gradient_norm() -> None:
    spec, space = learning.case_spec("vector_discrete"), environments.SPACES["vector_discrete"][0]
    config = learning.make_config(
        "a2c", algorithm={"max_grad_norm": 1e-3, "optimizer_epsilon": 1.0, "learning_rate": 1.0}
    )
    algorithm = make_algorithm(config, spec)
    before = algorithm.acting_parameters()
    metrics = algorithm.update(make_batch(algorithm, config, spec, space, seed=0), progress=0.0)
    after = algorithm.acting_parameters()
    moved = np.sqrt(sum(float(np.square(after[name] - before[name]).sum()) for name in before))
    assert metrics["grad_norm"] > 1e-3
    assert moved == pytest.approx(1e-3, rel=0.01)


def test_observation_normalizer_is_merged_after_learning() -> None:
    config, spec = full_config("ppo"), learning.case_spec("vector_discrete")
    space = environments.SPACES["vector_discrete"][0]
    algorithm = make_algorithm(config, spec)
    batch = make_batch(algorithm, config, spec, space, seed=0)
    algorithm.update(batch, progress=0.0)
    parameters = algorithm.acting_parameters()
    rows = batch.columns[OBSERVATION].reshape(-1, 4)
    assert parameters["normalizer//count"] == len(rows)
    np.testing.assert_allclose(parameters["normalizer//mean"], rows.mean(0), atol=1e-6)


def test_parameters_of_another_network_are_refused() -> None:
    spec = learning.case_spec("vector_discrete")
    small = make_algorithm(learning.make_config(policy={"hidden": [8, 8]}), spec)
    with pytest.raises(ValueError, match="has shape"):
        make_algorithm(learning.make_config(), spec).load(small.acting_parameters(), None)


def test_handed_out_state_is_a_copy() -> None:
    config, spec = full_config("ppo"), learning.case_spec("vector_discrete")
    space = environments.SPACES["vector_discrete"][0]
    algorithm = make_algorithm(config, spec)
    acting, training = algorithm.acting_parameters(), algorithm.training_state()
    kept = [{name: array.copy() for name, array in state.items()} for state in (acting, training)]
    algorithm.update(make_batch(algorithm, config, spec, space, seed=0), progress=0.0)
    assert_same(acting, kept[0])
    assert_same(training, kept[1])


class _Linear(torch.nn.Module):
    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.policy = torch.nn.Linear(num_features, num_outputs)
        self.value = torch.nn.Linear(num_features, 1)

    def forward(self, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.policy(inputs["flat"]), self.value(inputs["flat"]).squeeze(1)


def linear_factory(observation: Any, action: Any, policy: Any) -> torch.nn.Module:
    return _Linear(4, 3)


def wrong_factory(observation: Any, action: Any, policy: Any) -> torch.nn.Module:
    return _Linear(4, 7)


def test_a_network_of_ones_own_is_trained() -> None:
    spec, space = learning.case_spec("vector_discrete"), environments.SPACES["vector_discrete"][0]
    config = learning.make_config(policy={"network": f"{__name__}:linear_factory"})
    algorithm = make_algorithm(config, spec)
    before = algorithm.acting_parameters()
    algorithm.update(make_batch(algorithm, config, spec, space, seed=0), progress=0.0)
    after = algorithm.acting_parameters()
    assert all(not np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("network", ["nowhere:factory", f"{__name__}:wrong_factory", "transformer"])
def test_a_network_that_can_not_be_used_is_refused_by_path(network: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^policy\.network: "):
        make_algorithm(
            learning.make_config(policy={"network": network}), learning.case_spec("vector_discrete")
        )


def test_an_action_space_without_a_distribution_is_refused_by_path() -> None:
    spec = learning.make_spec(spaces.Discrete(2), spaces.Box(0, 9, (2,), np.int64))
    with pytest.raises(ConfigurationError, match=r"^environment\.id: no policy for action"):
        make_algorithm(learning.make_config(), spec)
