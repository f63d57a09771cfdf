"""Losses against numbers worked out by hand, their gradients against automatic differentiation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headrace.rl.losses import (
    a2c_policy_loss,
    approximate_kl,
    clip_fraction,
    explained_variance,
    normalize,
    ppo_policy_loss,
    value_loss,
)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_gradient_of_mean(loss: Callable[[Tensor], Tensor], at: Tensor, gradient: Tensor) -> None:
    """``loss`` is written with differentiable operations."""
    variable = at.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(variable).mean(), variable)
    torch.testing.assert_close(gradient, expected)


def test_ppo_loss_by_hand() -> None:
    ratio, advantage = tensor(1.0, 1.5, 1.5, 0.5, 0.5), tensor(2.0, 2.0, -2.0, 2.0, -2.0)
    losses, gradient = ppo_policy_loss(ratio.log(), advantage, 0.2)
    # Gain is capped at 1.2 A or 0.8 A where the ratio has already moved that way; losses aren't.
    assert losses.tolist() == pytest.approx([-2.0, -2.4, 3.0, -1.0, 1.6])
    assert gradient.tolist() == pytest.approx([-2.0 / 5, 0.0, 3.0 / 5, -1.0 / 5, 0.0])


def test_ppo_gradient_is_the_derivative_of_the_clipped_surrogate() -> None:
    generator = torch.Generator().manual_seed(0)
    log_ratio = torch.randn(200, generator=generator, dtype=torch.float64) * 0.4
    advantage = torch.randn(200, generator=generator, dtype=torch.float64)

    def loss(variable: Tensor) -> Tensor:
        ratio = variable.exp()
        return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)

    losses, gradient = ppo_policy_loss(log_ratio, advantage, 0.2)
    torch.testing.assert_close(losses, loss(log_ratio))
    assert_gradient_of_mean(loss, log_ratio, gradient)


def test_a2c_loss_by_hand() -> None:
    losses, gradient = a2c_policy_loss(tensor(-0.5, -2.0), tensor(3.0, -1.0))
    assert losses.tolist() == pytest.approx([1.5, -2.0])
    assert gradient.tolist() == pytest.approx([-1.5, 0.5])


def test_value_loss_by_hand() -> None:
    losses, gradient = value_loss(tensor(1.0, 4.0), tensor(3.0, 3.0))
    assert losses.tolist() == pytest.approx([2.0, 0.5])
    assert gradient.tolist() == pytest.approx([-1.0, 0.5])


def test_clipped_value_loss_is_the_worse_of_both() -> None:
    # The first value left the clip range towards its target: the kept one is worse, and has no slope.
    losses, gradient = value_loss(tensor(2.0, -2.0), tensor(3.0, 3.0), tensor(0.0, 0.0), 0.5)
    assert losses.tolist() == pytest.approx([0.5 * 2.5**2, 0.5 * 5.0**2])
    assert gradient.tolist() == pytest.approx([0.0, -2.5])


def test_clipped_value_gradient_is_its_derivative() -> None:
    generator = torch.Generator().manual_seed(0)
    value, target, old = torch.randn(3, 200, generator=generator, dtype=torch.float64)

    def loss(variable: Tensor) -> Tensor:
        near = old + (variable - old).clamp(-0.3, 0.3)
        return 0.5 * torch.max((variable - target) ** 2, (near - target) ** 2)

    losses, gradient = value_loss(value, target, old, 0.3)
    torch.testing.assert_close(losses, loss(value))
    assert_gradient_of_mean(loss, value, gradient)


def test_normalized_advantages_have_mean_zero_and_deviation_one() -> None:
    result = normalize(tensor(1.0, 2.0, 6.0))
    assert float(result.mean()) == pytest.approx(0.0, abs=1e-12)
    assert float(result.std()) == pytest.approx(1.0)


def test_a_single_advantage_is_left_as_it_is() -> None:
    assert normalize(tensor(3.0)).tolist() == [3.0]


def test_approximate_kl_is_zero_only_without_change() -> None:
    kl = approximate_kl(tensor(0.0, 0.1, -0.1))
    assert kl.tolist() == pytest.approx([0.0, math.exp(0.1) - 1.1, math.exp(-0.1) - 0.9])


def test_clip_fraction_marks_ratios_outside_the_range() -> None:
    assert clip_fraction(tensor(1.0, 1.19, 1.21, 0.79).log(), 0.2).tolist() == [0.0, 0.0, 1.0, 1.0]


def test_explained_variance_of_perfect_constant_and_undefined() -> None:
    target = tensor(1.0, 2.0, 3.0)
    assert explained_variance(target, target) == pytest.approx(1.0)
    assert explained_variance(torch.zeros_like(target), target) == pytest.approx(0.0)
    assert explained_variance(target, torch.ones_like(target)) == 0.0
