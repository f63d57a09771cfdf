"""The squashed Gaussian, the torch half: reparameterized samples and the way back, for learning.

Same law as :class:`headrace.nets.continuous_actors.SquashedGaussianActor`, which acts: ``a = tanh(u)``,
``u = mean + std * noise``. Row-major here: ``[M, slots]``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from headrace.nets.continuous_actors import LOG_STD_MAX, LOG_STD_MIN

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class SquashedGaussian:
    """One sample for each of M rows of outputs ``[M, 2 * slots]``: means, then log standard deviations."""

    def __init__(self, outputs: Tensor, noise: Tensor) -> None:
        """``noise`` ``[M, slots]`` is standard normal."""
        mean, log_std = outputs.chunk(2, dim=1)
        held = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        self._free = held == log_std
        self._spread = held.exp() * noise
        unsquashed = mean + self._spread
        self.action = torch.tanh(unsquashed)  # [M, slots]
        # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), without its cancellation
        squash = softplus(-2.0 * unsquashed).add_(unsquashed).sub_(math.log(2.0)).mul_(2.0)
        normal = noise.square().mul_(-0.5).sub_(held).sub_(_HALF_LOG_TWO_PI)
        self.log_prob = normal.add_(squash).sum(1)  # [M]

    def backward(self, action_gradient: Tensor, log_prob_gradient: Tensor) -> Tensor:
        """The gradient of the outputs from those by action ``[M, slots]`` and by log_prob ``[M]``.

        With the noise held: ``d log_prob / d u = 2 a`` and ``d a / d u = 1 - a^2``; log_std moves u by
        ``std * noise`` and log_prob by -1 besides, where it isn't clamped.
        """
        by_log_prob = log_prob_gradient.unsqueeze(1)
        unsquashed = action_gradient * (1.0 - self.action.square()) + 2.0 * by_log_prob * self.action
        log_std = (unsquashed * self._spread - by_log_prob) * self._free
        return torch.cat([unsquashed, log_std], dim=1)
