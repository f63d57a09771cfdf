"""What values are regressed on, for off-policy algorithms: plain functions of tensors of N rows.

``returns`` are the discounted rewards over each item's own steps, ``discount`` is that of the bootstrap:
gamma to the number of steps, or 0 if the episode terminated within them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def bootstrapped(returns: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """``returns + discount * next_value``, ``[N]``; what isn't bootstrapped from may be anything finite."""
    return torch.addcmul(returns, discount, next_value)


def greedy_value(target_q: Tensor, chooser_q: Tensor | None = None) -> Tensor:
    """Value ``[N]`` of the greedy action from Q ``[N, A]`` of the target network.

    With ``chooser_q`` ``[N, A]``, the learned network's, the action is its choice: van Hasselt et al., "Deep
    Reinforcement Learning with Double Q-learning" (2016), equation 4.
    """
    if chooser_q is None:
        return target_q.amax(1)
    return target_q.gather(1, chooser_q.argmax(1, keepdim=True)).squeeze(1)


def smoothed_action(action: Tensor, noise: Tensor, clip: float) -> Tensor:
    """The target's action in [-1, 1] with clipped noise, ``[N, slots]``.

    Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (2018), equation 14.
    """
    return noise.clamp(-clip, clip).add_(action).clamp_(-1.0, 1.0)


def soft_value(next_q: Tensor, next_log_prob: Tensor, alpha: float) -> Tensor:
    """The smaller of both critics' values ``[2, N]`` and the worth of entropy: ``min Q - alpha log pi``.

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), equations 3 and 6.
    """
    return torch.amin(next_q, 0).sub_(next_log_prob, alpha=alpha)


def move_target(target: Tensor, values: Tensor, tau: float) -> None:
    """Polyak averaging, in place: ``target + tau (values - target)``; a plain copy if ``tau`` is 1."""
    if tau == 1.0:
        target.copy_(values)
    else:
        target.lerp_(values, tau)
