"""Hand-written backward passes against automatic differentiation, and distributions against torch's."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import learning
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal

from headrace.config.sections import PolicyConfig
from headrace.nets.distributions import Joint
from headrace.nets.policy import TorchPolicy

OBSERVATION = spaces.Box(-1, 1, (5,), np.float32)
ACTIONS: dict[str, gym.Space[Any]] = {
    "categorical": spaces.Discrete(3),
    "multi_categorical": spaces.MultiDiscrete([3, 4]),
    "bernoulli": spaces.MultiBinary(3),
    "gaussian": spaces.Box(-2, 2, (2,), np.float32),
    "composite": spaces.Tuple(
        (spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2))
    ),
}


def make_policy(action: gym.Space[Any], **fields: Any) -> TorchPolicy:
    spec = learning.make_spec(OBSERVATION, action)
    policy = TorchPolicy(spec, PolicyConfig(hidden=[8, 6], initial_log_std=-0.3, **fields), seed=1)
    with torch.no_grad():  # the tiny initial policy head would hide errors
        policy.values.add_(torch.randn(len(policy.values), generator=torch.Generator().manual_seed(2)) * 0.3)
    return policy


def reference(policy: TorchPolicy, outputs: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
    """Log probability and entropy by torch.distributions."""
    log_std = policy._log_std
    log_prob, entropy = torch.zeros(outputs.shape[1]), torch.zeros(outputs.shape[1])
    for head in policy.layout.heads:
        own, action = outputs[head.outputs].t(), packed[head.slots].t()
        distribution: Any
        if head.kind == "categorical":
            distribution, action = Categorical(logits=own), action[:, 0]
        elif head.kind == "bernoulli":
            distribution = torch.distributions.Independent(Bernoulli(logits=own), 1)
        else:
            normal = Normal(own, log_std[head.log_std].exp().expand_as(own))
            distribution = torch.distributions.Independent(normal, 1)
        log_prob = log_prob + distribution.log_prob(action)
        entropy = entropy + distribution.entropy()
    return log_prob, entropy


def make_inputs(policy: TorchPolicy, rows: int) -> tuple[dict[str, Tensor], Tensor]:
    rng = np.random.default_rng(3)
    inputs = policy.inputs({"": rng.standard_normal((rows, 5)).astype(np.float32)})
    outputs = policy.forward(inputs)[0].detach().numpy()
    actions, _ = policy.layout.sample(outputs, np.zeros(policy.layout.num_log_std, np.float32), rng)
    return inputs, policy.tensor(policy.layout.pack(actions))


@pytest.mark.parametrize("kind", ACTIONS)
def test_log_prob_and_entropy_are_those_of_torch(kind: str) -> None:
    policy = make_policy(ACTIONS[kind])
    inputs, packed = make_inputs(policy, 7)
    with torch.no_grad():
        outputs, _ = policy.forward(inputs)
        joint = Joint.of(policy.layout, outputs, policy._log_std, packed)
        log_prob, entropy = reference(policy, outputs, packed)
    torch.testing.assert_close(joint.log_prob, log_prob)
    torch.testing.assert_close(joint.entropy, entropy)


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_backward_is_the_derivative(kind: str, activation: str) -> None:
    policy = make_policy(ACTIONS[kind], activation=activation)
    inputs, packed = make_inputs(policy, 9)
    generator = torch.Generator().manual_seed(4)
    log_prob_gradient, value_gradient = torch.randn(2, 9, generator=generator)

    now = policy.evaluate(inputs, packed)
    policy.backward(
        now, log_prob_gradient=log_prob_gradient, entropy_gradient=-0.7, value_gradient=value_gradient
    )
    by_hand = policy.gradients.clone()

    policy.gradients.zero_()
    outputs, value = policy.forward(inputs)
    log_prob, entropy = reference(policy, outputs, packed)
    loss = (log_prob * log_prob_gradient).sum() - 0.7 * entropy.sum() + (value * value_gradient).sum()
    torch.autograd.backward(loss)
    assert by_hand.abs().max() > 0.1
    torch.testing.assert_close(by_hand, policy.gradients, rtol=1e-4, atol=1e-5)


def test_a_policy_without_hidden_layers_has_a_backward_pass_too() -> None:
    spec = learning.make_spec(OBSERVATION, spaces.Discrete(3))
    policy = TorchPolicy(spec, PolicyConfig(hidden=[]), seed=1)
    inputs, packed = make_inputs(policy, 4)
    now = policy.evaluate(inputs, packed)
    ones = torch.ones(4)
    policy.backward(now, log_prob_gradient=ones, entropy_gradient=0.0, value_gradient=ones)
    by_hand = policy.gradients.clone()
    policy.gradients.zero_()
    outputs, value = policy.forward(inputs)
    torch.autograd.backward(reference(policy, outputs, packed)[0].sum() + value.sum())
    torch.testing.assert_close(by_hand, policy.gradients)


def test_parameters_are_views_of_one_vector() -> None:
    policy = make_policy(spaces.Discrete(3))
    with torch.no_grad():
        policy.values.zero_()
    assert all(not array.any() for array in policy.parameters().values())


def test_initialization_depends_on_the_seed_alone() -> None:
    spec = learning.make_spec(OBSERVATION, spaces.Discrete(3))
    torch.manual_seed(5)
    first = TorchPolicy(spec, PolicyConfig(), seed=1)
    before = torch.get_rng_state()
    second, other = TorchPolicy(spec, PolicyConfig(), seed=1), TorchPolicy(spec, PolicyConfig(), seed=2)
    assert torch.equal(first.values, second.values)
    assert not torch.equal(first.values, other.values)
    assert torch.equal(before, torch.get_rng_state())


def test_load_refuses_another_network() -> None:
    spec = learning.make_spec(OBSERVATION, spaces.Discrete(3))
    small, large = (
        TorchPolicy(spec, PolicyConfig(hidden=[8]), seed=1),
        TorchPolicy(spec, PolicyConfig(), seed=1),
    )
    with pytest.raises(ValueError, match="has shape"):
        large.load(small.parameters())
