"""DDPG, TD3 and SAC: exact targets and gradients, exact resumption, and what they refuse."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import learning
import numpy as np
import pytest
import replaying
import torch
from gymnasium import spaces
from torch import Tensor

from headrace.errors import ConfigurationError, UnsupportedSpaceError
from headrace.nets.exploration import RANDOM
from headrace.nets.mlp import Mlp
from headrace.nets.squashed_gaussian import SquashedGaussian
from headrace.rl.algorithm import ReplayAlgorithm, make_replay_algorithm
from headrace.rl.random_state import unpack_rng
from headrace.rl.targets import bootstrapped, move_target, smoothed_action, soft_value
from headrace.types import DISCOUNT, N_STEP_RETURN, NEXT_OBSERVATION, OBSERVATION, ReplayBatch

BOX = spaces.Box(-1, 1, (3,), np.float32)
ACTIONS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
SPEC = learning.make_spec(BOX, ACTIONS)
NAMES = ["ddpg", "td3", "sac"]


def make(name: str, seed: int = 1, **algorithm: Any) -> ReplayAlgorithm:
    config = learning.make_config(
        name,
        run={"seed": seed},
        policy={"hidden": [8, 8], "activation": "relu"},
        algorithm={"tau": 0.1, **algorithm},
    )
    return make_replay_algorithm(config, SPEC)


def network(values: np.ndarray[Any, Any], inputs: int, outputs: int, towers: int = 1) -> Mlp:
    mlp = Mlp(inputs, [8, 8], (outputs,), tanh=False, generator=torch.Generator(), towers=towers)
    mlp.values.copy_(torch.tensor(values))
    return mlp


def acting(algorithm: ReplayAlgorithm, outputs: int) -> Mlp:
    mlp = Mlp(3, [8, 8], (outputs,), tanh=False, generator=torch.Generator())
    mlp.load({name.removeprefix("network/"): value for name, value in algorithm.acting_parameters().items()})
    return mlp


def packed(batch: ReplayBatch) -> Tensor:
    centre, unit = np.array([0.0, 0.5]), np.array([2.0, 0.5])
    return torch.tensor((batch.columns["action"] - centre) / unit, dtype=torch.float32)


def column(batch: ReplayBatch, name: str) -> Tensor:
    return torch.tensor(batch.columns[name])


def test_polyak_averaging_moves_a_share_of_the_way() -> None:
    target, values = torch.tensor([0.0, 10.0]), torch.tensor([4.0, 10.0])
    move_target(target, values, 0.25)
    assert target.tolist() == [1.0, 10.0]
    move_target(target, values, 1.0)
    assert torch.equal(target, values)


def test_the_targets_noise_is_clipped_and_so_is_its_action() -> None:
    noise = torch.tensor([[0.2, -3.0], [0.9, 0.1]])
    smoothed = smoothed_action(torch.tensor([[0.1, 0.0], [0.8, 0.5]]), noise, 0.5)
    torch.testing.assert_close(smoothed, torch.tensor([[0.3, -0.5], [1.0, 0.6]]))
    assert noise[0, 1] == -3.0


def test_the_soft_value_is_the_smaller_q_and_the_entropys_worth() -> None:
    next_q = torch.tensor([[1.0, 5.0], [2.0, 3.0]])
    assert soft_value(next_q, torch.tensor([-2.0, 4.0]), 0.5).tolist() == [2.0, 1.0]


def test_the_squashed_gaussian_is_that_of_torch_and_so_are_its_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 4, generator=generator)
    outputs[0, 2] = 3.0  # a log standard deviation beyond its bound
    noise = torch.randn(5, 2, generator=generator)
    leaf = outputs.double().requires_grad_()  # the formula as it is written cancels in single precision
    mean, log_std = leaf.chunk(2, dim=1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    unsquashed = mean + normal.stddev * noise
    action = torch.tanh(unsquashed)
    log_prob = (normal.log_prob(unsquashed) - torch.log(1 - action.square())).sum(1)
    sample = SquashedGaussian(outputs, noise)
    torch.testing.assert_close(sample.action.double(), action, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sample.log_prob.double(), log_prob, rtol=1e-5, atol=1e-5)

    upstream_a, upstream_l = torch.randn(5, 2, generator=generator), torch.randn(5, generator=generator)
    (wanted,) = torch.autograd.grad((action, log_prob), leaf, (upstream_a.double(), upstream_l.double()))
    torch.testing.assert_close(sample.backward(upstream_a, upstream_l).double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_errors_are_those_of_the_algorithms_own_target(name: str) -> None:
    algorithm = make(name, target_noise=0.0) if name == "td3" else make(name)
    towers = 1 if name == "ddpg" else 2
    algorithm.learn(replaying.random_batch(BOX, ACTIONS, seed=1), env_steps=0, progress=0.0)
    saved = algorithm.training_state()
    batch = replaying.random_batch(BOX, ACTIONS, steps=1, seed=5)
    observation, following = column(batch, OBSERVATION), column(batch, NEXT_OBSERVATION)
    target_critics = network(saved["target_critics/values"], 5, 1, towers)
    critics = network(saved["critics/values"], 5, 1, towers)
    if name == "sac":
        rng = np.random.Generator(np.random.PCG64())
        unpack_rng(rng, saved["rng/state"])
        noise = torch.tensor(rng.standard_normal((8, 2), "float32"))
        sample = SquashedGaussian(acting(algorithm, 4).forward(following), noise)
        next_q = target_critics.forward(torch.cat([following, sample.action], 1))
        alpha = float(np.exp(saved["log_alpha"][0]))
        next_value = next_q.amin(0)[:, 0] - alpha * sample.log_prob
    else:
        next_action = torch.tanh(network(saved["target_actor/values"], 3, 2).forward(following))
        next_q = target_critics.forward(torch.cat([following, next_action], 1))
        next_value = next_q[:, 0] if name == "ddpg" else next_q.amin(0)[:, 0]
    target = bootstrapped(column(batch, N_STEP_RETURN), column(batch, DISCOUNT), next_value)
    q = critics.forward(torch.cat([observation, packed(batch)], 1)).squeeze(-1)
    error = (q - target).abs()
    expected = error if name == "ddpg" else error.mean(0)
    learned = algorithm.learn(batch, env_steps=0, progress=0.0)
    np.testing.assert_allclose(learned.td_errors, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_step_is_that_of_automatic_differentiation(name: str) -> None:
    """Critics and actor after one step equal those that torch's own graph and Adam arrive at."""
    options: dict[str, Any] = {"target_noise": 0.0, "policy_delay": 1} if name == "td3" else {}
    algorithm = make(name, learning_rate=1e-3, **options)
    batch = replaying.random_batch(BOX, ACTIONS, steps=1, seed=5)
    towers, outputs = (1 if name == "ddpg" else 2), (4 if name == "sac" else 2)
    before = algorithm.training_state()
    reference = _Reference(before, acting(algorithm, outputs), towers, soft=name == "sac")
    algorithm.learn(batch, env_steps=0, progress=0.0)
    critics, actor = reference.step(batch, packed(batch))
    after = algorithm.training_state()
    # Adam's first step is the sign of the gradient: where that is nearly 0 rounding decides.
    assert np.mean(np.abs(after["critics/values"] - critics) > 2e-5) < 0.01
    assert np.mean(np.abs(acting(algorithm, outputs).values.numpy() - actor) > 2e-5) < 0.01


class _Reference:
    """One step of DDPG, TD3 (without noise) or SAC, written with torch's graph."""

    def __init__(self, state: dict[str, Any], actor: Mlp, towers: int, *, soft: bool) -> None:
        self.critics = torch.tensor(state["critics/values"], requires_grad=True)
        self.actor = actor.values.clone().requires_grad_()
        self.towers, self.soft = towers, soft
        self.rng = np.random.Generator(np.random.PCG64())
        unpack_rng(self.rng, state["rng/state"])

    def forward(self, flat: Tensor, x: Tensor, outputs: int, towers: int) -> Tensor:
        sizes = [x.shape[1], 8, 8, outputs]
        offset, h = 0, x.expand(towers, *x.shape)
        for layer, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
            weight = flat[offset : offset + towers * n_in * n_out]
            shape = (towers, n_in, n_out) if layer < 2 else (towers, n_out, n_in)
            weight = weight.view(shape) if layer < 2 else weight.view(shape).mT
            offset += towers * n_in * n_out
            bias = flat[offset : offset + towers * n_out].view(towers, 1, n_out)
            offset += towers * n_out
            h = h @ weight + bias
            h = torch.relu(h) if layer < 2 else h
        return h

    def policy(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        if not self.soft:
            return torch.tanh(self.forward(self.actor, x, 2, 1)[0]), torch.zeros(len(x))
        mean, log_std = self.forward(self.actor, x, 4, 1)[0].chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        u = mean + log_std.clamp(-20, 2).exp() * noise
        return torch.tanh(u), (normal.log_prob(u) - torch.log(1 - torch.tanh(u).square())).sum(1)

    def q(self, x: Tensor, action: Tensor) -> Tensor:
        return self.forward(self.critics, torch.cat([x, action], 1), 1, self.towers).squeeze(2)

    def step(self, batch: ReplayBatch, action: Tensor) -> tuple[Any, Any]:
        x, following = column(batch, OBSERVATION), column(batch, NEXT_OBSERVATION)
        weight, alpha = torch.tensor(batch.importance_weights), 1.0 if self.soft else 0.0
        next_noise, noise = (torch.tensor(self.rng.standard_normal((8, 2), "float32")) for _ in range(2))
        with torch.no_grad():
            next_action, next_log_prob = self.policy(following, next_noise)
            next_value = self.q(following, next_action).amin(0) - alpha * next_log_prob
            target = column(batch, N_STEP_RETURN) + column(batch, DISCOUNT) * next_value
        critic_optimizer = torch.optim.Adam([self.critics], 1e-3)
        (weight * (self.q(x, action) - target).square() * 0.5).mean(1).sum().backward()
        critic_optimizer.step()
        actor_optimizer = torch.optim.Adam([self.actor], 1e-3)
        chosen, log_prob = self.policy(x, noise)
        q = self.q(x, chosen)
        (weight * (alpha * log_prob - (q.amin(0) if self.soft else q[0]))).mean().backward()
        actor_optimizer.step()
        return self.critics.detach().numpy(), self.actor.detach().numpy()


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_has_the_same_bits(name: str) -> None:
    batches = [replaying.random_batch(BOX, ACTIONS, seed=seed) for seed in range(4)]
    straight = make(name)
    for batch in batches[:2]:
        straight.learn(batch, env_steps=100, progress=0.1)
    resumed = make(name, seed=99)
    resumed.load(straight.acting_parameters(), straight.training_state())
    for batch in batches[2:]:
        one = straight.learn(batch, env_steps=200, progress=0.2)
        other = resumed.learn(batch, env_steps=200, progress=0.2)
        assert one.metrics == other.metrics
        assert np.array_equal(one.td_errors, other.td_errors)
    for method in ("acting_parameters", "training_state"):
        first, second = getattr(straight, method)(), getattr(resumed, method)()
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[each], second[each]) for each in first)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_is_not_finite_is_skipped_and_counted(name: str) -> None:
    algorithm = make(name)
    batch = replaying.random_batch(BOX, ACTIONS, steps=2)
    poisoned = dict(batch.columns)
    poisoned[N_STEP_RETURN] = poisoned[N_STEP_RETURN].copy()
    poisoned[N_STEP_RETURN][3] = np.nan
    learned = algorithm.learn(replace(batch, columns=poisoned), env_steps=0, progress=0.0)
    assert learned.metrics["non_finite"] == 1.0
    assert learned.td_errors[3] == 0.0
    everything = {**algorithm.acting_parameters(), **algorithm.training_state()}
    assert all(np.isfinite(value).all() for value in everything.values())
    assert all(np.isfinite(value) for value in learned.metrics.values())


def test_td3s_actor_learns_every_policy_delay_steps() -> None:
    algorithm = make("td3", policy_delay=3)
    before = acting(algorithm, 2).values.clone()
    algorithm.learn(replaying.random_batch(BOX, ACTIONS, steps=2), env_steps=0, progress=0.0)
    assert torch.equal(acting(algorithm, 2).values, before)
    algorithm.learn(replaying.random_batch(BOX, ACTIONS, steps=1), env_steps=0, progress=0.0)
    assert not torch.equal(acting(algorithm, 2).values, before)


def test_sacs_temperature_rises_while_entropy_is_below_its_target() -> None:
    batch = replaying.random_batch(BOX, ACTIONS, steps=1)
    alphas = {}
    for target in (-100.0, 100.0):
        algorithm = make("sac", target_entropy=target, alpha_learning_rate=0.1)
        algorithm.learn(batch, env_steps=0, progress=0.0)
        alphas[target] = float(algorithm.training_state()["log_alpha"][0])
    assert alphas[-100.0] == pytest.approx(-0.1, rel=1e-3)
    assert alphas[100.0] == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_random_acting_ends_after_random_steps(name: str) -> None:
    algorithm, batch = make(name, random_steps=30), replaying.random_batch(BOX, ACTIONS, steps=1)
    assert algorithm.acting_parameters()[RANDOM] == 1.0
    algorithm.learn(batch, env_steps=30, progress=0.0)
    assert algorithm.acting_parameters()[RANDOM] == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_what_it_cannot_act_in_is_refused_in_words(name: str) -> None:
    config = learning.make_config(name)
    with pytest.raises(UnsupportedSpaceError, match=f"{name} needs continuous actions"):
        make_replay_algorithm(config, learning.make_spec(BOX, spaces.Discrete(3)))
    unbounded = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32))
    with pytest.raises(UnsupportedSpaceError, match="components without finite ones"):
        make_replay_algorithm(config, learning.make_spec(BOX, unbounded))
    image = spaces.Box(0, 255, (40, 40, 3), np.uint8)
    with pytest.raises(ConfigurationError, match=r"policy\.network: .*use mlp"):
        make_replay_algorithm(config, learning.make_spec(image, ACTIONS))
