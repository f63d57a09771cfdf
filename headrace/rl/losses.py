"""Losses, as plain functions of tensors ``[N]``. Advantages and targets are constants of the update."""

from __future__ import annotations

import torch
from torch import Tensor


def ppo_policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Clipped surrogate, to be minimized: ``-mean(min(r A, clip(r, 1 - c, 1 + c) A))``.

    ``log_ratio`` is log pi(a|s) minus behavior_log_prob. Schulman et al., "Proximal Policy Optimization
    Algorithms" (2017), equation 7.
    """
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage).mean()


def a2c_policy_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Policy gradient: ``-mean(log pi(a|s) A)``. Mnih et al., "Asynchronous Methods" (2016), section 4."""
    return -(log_prob * advantage).mean()


def value_loss(
    value: Tensor, target: Tensor, old_value: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """Half the mean squared error. With ``clip``, the worse of it and that of the value kept near ``old_value``.

    Huang et al., "The 37 Implementation Details of Proximal Policy Optimization" (2022), detail 9.
    """
    error = (value - target).square()
    if clip is not None and old_value is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - target).square())
    return 0.5 * error.mean()


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """KL(behavior, policy) estimated as ``mean(r - 1 - log r)``: unbiased, never negative.

    Schulman, "Approximating KL Divergence" (2020), estimator k3.
    """
    return (log_ratio.exp() - 1.0 - log_ratio).mean()


def explained_variance(value: Tensor, target: Tensor) -> float:
    """``1 - Var(target - value) / Var(target)``: 1 is perfect, 0 no better than a constant. 0 if no variance."""
    variance = float(target.var(correction=0))
    return 1.0 - float((target - value).var(correction=0)) / variance if variance > 0 else 0.0
