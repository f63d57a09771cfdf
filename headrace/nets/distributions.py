"""Action distributions, the torch half: log probability and entropy, for learning.

Same layout and units as :mod:`headrace.nets.actions`, which draws.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from headrace.nets.actions import ActionLayout

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def log_prob_and_entropy(
    layout: ActionLayout, outputs: Tensor, log_std: Tensor, packed: Tensor
) -> tuple[Tensor, Tensor]:
    """Joint log probability and entropy ``[N]`` of packed actions ``[N, slots]``.

    ``outputs`` ``[N, num_outputs]`` are the network's, ``log_std`` ``[num_log_std]`` the Gaussians'.
    Independent heads: both are sums over heads.
    """
    log_probs: list[Tensor] = []
    entropies: list[Tensor] = []
    for head in layout.heads:
        own, action = outputs[:, head.outputs], packed[:, head.slots]
        if head.kind == "categorical":
            log_prob, entropy = _categorical(own, action)
        elif head.kind == "bernoulli":
            log_prob, entropy = _bernoulli(own, action)
        else:
            log_prob, entropy = _gaussian(own, log_std[head.log_std], action)
        log_probs.append(log_prob)
        entropies.append(entropy)
    if len(log_probs) == 1:
        return log_probs[0], entropies[0]
    return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


def _categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = torch.log_softmax(logits, dim=1)
    entropy = -(log_probs.exp() * log_probs).sum(1)
    return log_probs.gather(1, action.long()).squeeze(1), entropy


def _bernoulli(logits: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    log_on, log_off = logsigmoid(logits), logsigmoid(-logits)
    log_prob = torch.where(bits > 0.5, log_on, log_off).sum(1)
    entropy = -(log_on.exp() * log_on + log_off.exp() * log_off).sum(1)
    return log_prob, entropy


def _gaussian(mean: Tensor, log_std: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    deviation = (position - mean) * torch.exp(-log_std)
    constant = log_std.sum() + mean.shape[1] * _HALF_LOG_TWO_PI
    log_prob = -0.5 * deviation.square().sum(1) - constant
    entropy = (constant + 0.5 * mean.shape[1]).expand(mean.shape[0])
    return log_prob, entropy
