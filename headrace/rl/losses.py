"""Losses with their gradients, as plain functions of tensors ``[N]``.

Each returns the loss of every row ``[N]`` (the loss itself is its mean) and the gradient of that mean by
the first argument ``[N]``. Advantages, targets and behavior values are constants. The gradients are
written out because automatic differentiation of vectors this small is mostly overhead.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def ppo_policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Clipped surrogate, to be minimized: ``-min(r A, clip(r, 1 - c, 1 + c) A)``.

    ``log_ratio`` is log pi(a|s) minus behavior_log_prob, r its exponential. No gradient where the clipped
    term is the smaller. Schulman et al., "Proximal Policy Optimization Algorithms" (2017), equation 7.
    """
    ratio = log_ratio.exp()
    surrogate = ratio * advantage
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip).mul_(advantage)
    gradient = torch.where(surrogate <= clipped, surrogate, 0.0).mul_(-1.0 / len(log_ratio))
    return torch.minimum(surrogate, clipped).neg_(), gradient


def a2c_policy_loss(log_prob: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
    """Policy gradient: ``-log pi(a|s) A``. Mnih et al., "Asynchronous Methods" (2016), section 4.3."""
    return -(log_prob * advantage), advantage * (-1.0 / len(log_prob))


def value_loss(
    value: Tensor, target: Tensor, old_value: Tensor | None = None, clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Half the squared error; with ``clip``, the worse of it and that of a value kept near ``old_value``.

    Huang et al., "The 37 Implementation Details of Proximal Policy Optimization" (2022), detail 9.
    """
    error = value - target
    if clip is None or old_value is None:
        return error.square().mul_(0.5), error * (1.0 / len(value))
    move = value - old_value
    near_error = old_value + move.clamp(-clip, clip) - target
    plain, near = error.square(), near_error.square()
    # Where the kept value is the worse one it doesn't follow the value beyond the clip range.
    gradient = torch.where(near > plain, near_error * (move.abs() <= clip), error)
    return torch.maximum(plain, near).mul_(0.5), gradient.mul_(1.0 / len(value))


def normalize(advantage: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1; as they are if there is only one."""
    if len(advantage) < 2:
        return advantage
    std, mean = torch.std_mean(advantage)
    return (advantage - mean).div_(std.add_(1e-8))


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(behavior, policy) of every row, estimated as ``r - 1 - log r``: never negative.

    Schulman, "Approximating KL Divergence" (2020), estimator k3.
    """
    return torch.expm1(log_ratio).sub_(log_ratio)


def clip_fraction(log_ratio: Tensor, clip: float) -> Tensor:
    """1 for rows whose importance ratio is outside the clip range, else 0."""
    return (torch.expm1(log_ratio).abs_() > clip).float()


def explained_variance(value: Tensor, target: Tensor) -> float:
    """``1 - Var(target - value) / Var(target)``: 1 is perfect, 0 no better than a constant, or undefined."""
    if len(target) == 0:
        return 0.0
    variance, residual = float(target.var(correction=0)), float((target - value).var(correction=0))
    return 1.0 - residual / variance if variance > 0 and math.isfinite(residual / variance) else 0.0


def squared_loss(error: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Half the squared error times ``weight``, the row's importance weight."""
    gradient = error * weight
    return (gradient * error).mul_(0.5), gradient.mul_(1.0 / len(error))


def huber_loss(error: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Half the squared error, linear beyond 1, times ``weight``, the row's importance weight.

    Mnih et al., "Human-level control through deep reinforcement learning" (2015), methods: error clipping.
    """
    clipped = error.clamp(-1.0, 1.0)
    gradient = clipped * weight
    return gradient * (error - 0.5 * clipped), gradient * (1.0 / len(error))
