"""DQN: exact targets, exact steps, exact resumption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import learning
import numpy as np
import pytest
import replaying
import torch
from gymnasium import spaces

from headrace.errors import UnsupportedSpaceError
from headrace.nets.exploration import EPSILON, RANDOM
from headrace.nets.q_network import QNetwork
from headrace.rl.algorithm import ReplayAlgorithm, make_replay_algorithm
from headrace.rl.targets import bootstrapped, greedy_value
from headrace.types import ACTION, DISCOUNT, N_STEP_RETURN, NEXT_OBSERVATION, OBSERVATION

BOX, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4, start=2)
SPEC = learning.make_spec(BOX, CHOICE)


def make(seed: int = 1, **algorithm: Any) -> ReplayAlgorithm:
    config = learning.make_config(
        "dqn",
        run={"seed": seed},
        policy={"hidden": [8, 8], "activation": "relu"},
        algorithm={"target_every": 2, **algorithm},
    )
    return make_replay_algorithm(config, SPEC)


def q_of(algorithm: ReplayAlgorithm, observation: np.ndarray[Any, Any], *, dueling: bool) -> torch.Tensor:
    config = learning.make_config("dqn", policy={"hidden": [8, 8], "activation": "relu"})
    network = QNetwork(SPEC, config.policy, dueling=dueling, seed=0)
    network.load(algorithm.acting_parameters())
    return network.forward(network.inputs({"": observation}))


def test_the_double_target_is_the_target_networks_value_of_the_learned_networks_choice() -> None:
    target_q, chooser_q = torch.tensor([[1.0, 5.0], [3.0, 2.0]]), torch.tensor([[9.0, 0.0], [9.0, 0.0]])
    assert greedy_value(target_q).tolist() == [5.0, 3.0]
    assert greedy_value(target_q, chooser_q).tolist() == [1.0, 3.0]
    target = bootstrapped(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.0]), torch.tensor([4.0, 1e30]))
    assert target.tolist() == [3.0, 1.0]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
def test_the_errors_are_those_of_the_one_step_target(double: bool, dueling: bool) -> None:
    algorithm = make(double=double, dueling=dueling, gradient_steps=1)
    # After one step the learned network differs from the target, which is still the first one.
    first = q_of(algorithm, np.zeros((1, 3), np.float32), dueling=dueling)
    batch = replaying.random_batch(BOX, CHOICE, steps=1, seed=5)
    next_target = q_of(algorithm, batch.columns[NEXT_OBSERVATION], dueling=dueling)
    algorithm.learn(batch, env_steps=0, progress=0.0)
    assert not torch.equal(first, q_of(algorithm, np.zeros((1, 3), np.float32), dueling=dueling))
    now = q_of(algorithm, batch.columns[OBSERVATION], dueling=dueling)
    next_now = q_of(algorithm, batch.columns[NEXT_OBSERVATION], dueling=dueling)
    chosen = batch.columns[ACTION] - 2
    expected = []
    for row in range(8):
        best = int(next_now[row].argmax()) if double else int(next_target[row].argmax())
        bootstrap = float(batch.columns[DISCOUNT][row]) * float(next_target[row, best])
        expected.append(float(batch.columns[N_STEP_RETURN][row]) + bootstrap - float(now[row, chosen[row]]))
    learned = algorithm.learn(batch, env_steps=0, progress=0.0)
    np.testing.assert_allclose(learned.td_errors, np.abs(expected), rtol=1e-4, atol=1e-5)
    assert learned.td_errors.dtype == np.float32


@pytest.mark.parametrize("options", [{}, {"dueling": True, "double": False}, {"tau": 0.1, "target_every": 1}])
def test_a_resumed_run_has_the_same_bits(options: dict[str, Any]) -> None:
    batches = [replaying.random_batch(BOX, CHOICE, seed=seed) for seed in range(4)]
    straight = make(**options)
    for batch in batches[:2]:
        straight.learn(batch, env_steps=100, progress=0.1)
    acting, training = straight.acting_parameters(), straight.training_state()
    resumed = make(seed=99, **options)
    resumed.load(acting, training)
    for batch in batches[2:]:
        one = straight.learn(batch, env_steps=200, progress=0.2)
        other = resumed.learn(batch, env_steps=200, progress=0.2)
        assert one.metrics == other.metrics
        assert np.array_equal(one.td_errors, other.td_errors)
    for method in ("acting_parameters", "training_state"):
        first, second = getattr(straight, method)(), getattr(resumed, method)()
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[name], second[name]) for name in first)


def test_the_target_moves_after_every_so_many_gradient_steps() -> None:
    algorithm = make(target_every=4)
    before = algorithm.training_state()["target/values"]
    algorithm.learn(replaying.random_batch(BOX, CHOICE, steps=3), env_steps=0, progress=0.0)
    assert np.array_equal(algorithm.training_state()["target/values"], before)
    algorithm.learn(replaying.random_batch(BOX, CHOICE, steps=1), env_steps=0, progress=0.0)
    moved = algorithm.training_state()["target/values"]
    assert not np.array_equal(moved, before)
    fresh = make(target_every=4)
    fresh.load(algorithm.acting_parameters(), None)
    assert np.array_equal(fresh.training_state()["target/values"], moved)


def test_a_step_that_is_not_finite_is_skipped_and_counted() -> None:
    algorithm = make()
    batch = replaying.random_batch(BOX, CHOICE, steps=2)
    poisoned = dict(batch.columns)
    poisoned[N_STEP_RETURN] = poisoned[N_STEP_RETURN].copy()
    poisoned[N_STEP_RETURN][3] = np.inf
    learned = algorithm.learn(replace(batch, columns=poisoned), env_steps=0, progress=0.0)
    assert learned.metrics["non_finite"] == 1.0
    assert learned.td_errors[3] == 0.0
    assert np.isfinite(learned.td_errors).all()
    assert all(np.isfinite(value).all() for value in algorithm.acting_parameters().values())
    assert all(np.isfinite(value) for value in learned.metrics.values())


def test_importance_weights_multiply_the_loss() -> None:
    batch = replaying.random_batch(BOX, CHOICE, steps=1)
    nothing = replace(batch, importance_weights=np.zeros_like(batch.importance_weights))
    learned = make().learn(nothing, env_steps=0, progress=0.0)
    assert learned.metrics["value_loss"] == learned.metrics["grad_norm"] == 0.0
    assert (learned.td_errors > 0).any()


def test_epsilon_falls_linearly_and_random_acting_ends() -> None:
    algorithm = make(epsilon_initial=0.9, epsilon_final=0.1, exploration_steps=100, random_steps=30)
    batch, seen = replaying.random_batch(BOX, CHOICE, steps=1), []
    for env_steps in (0, 25, 50, 100, 500):
        algorithm.learn(batch, env_steps=env_steps, progress=0.0)
        acting = algorithm.acting_parameters()
        seen.append((round(float(acting[EPSILON]), 5), float(acting[RANDOM])))
    assert seen == [(0.9, 1.0), (0.7, 1.0), (0.5, 0.0), (0.1, 0.0), (0.1, 0.0)]


def test_spaces_without_a_single_choice_are_refused_in_words() -> None:
    for action in (spaces.Box(-1, 1, (1,), np.float32), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)):
        with pytest.raises(UnsupportedSpaceError, match="needs a single Discrete action"):
            make_replay_algorithm(learning.make_config("dqn"), learning.make_spec(BOX, action))


def test_images_are_learned_from_by_a_convolutional_network() -> None:
    image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    for dueling in (False, True):
        config = learning.make_config("dqn", algorithm={"dueling": dueling, "target_every": 2})
        algorithm = make_replay_algorithm(config, learning.make_spec(image, spaces.Discrete(3)))
        batch = replaying.random_batch(image, spaces.Discrete(3), steps=3, size=4)
        before = algorithm.acting_parameters()
        learned = algorithm.learn(batch, env_steps=0, progress=0.0)
        assert learned.metrics["non_finite"] == 0.0
        after = algorithm.acting_parameters()
        assert any(not np.array_equal(before[name], after[name]) for name in before if "conv" in name)
