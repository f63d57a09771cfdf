"""Action distributions, the torch half: log probability and entropy with their gradients, for learning.

Same layout and units as :mod:`headrace.nets.actions`, which draws; feature-major as there, ``N``
columns. Gradients are written out: the formulas are short, and automatic differentiation of vectors
this small is mostly overhead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from headrace.nets.actions import ActionLayout, HeadKind

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class _Evaluated(Protocol):
    """One head's log probability and entropy of given actions, and the way back."""

    log_prob: Tensor  # [N]
    entropy: Tensor  # [N]

    def backward(self, log_prob_gradient: Tensor, entropy_gradient: float) -> tuple[Tensor, Tensor | None]:
        """Gradients of the outputs ``[n, N]`` and of log_std ``[n]`` (None if it has none)."""
        ...


class Categorical:
    """One of n. Logits ``[n, N]``, category ``[1, N]``."""

    def __init__(self, logits: Tensor, log_std: Tensor, action: Tensor) -> None:
        self._index = action.long()
        self._log_probs = torch.log_softmax(logits, dim=0)
        self._probs = self._log_probs.exp()
        self.log_prob = self._log_probs.gather(0, self._index).squeeze(0)
        self.entropy = (self._probs * self._log_probs).sum(0).neg_()

    def backward(self, log_prob_gradient: Tensor, entropy_gradient: float) -> tuple[Tensor, None]:
        """``d log p_a / d z_i = [i = a] - p_i`` and ``d H / d z_i = -p_i (log p_i + H)``."""
        slope = torch.add(log_prob_gradient, self._log_probs + self.entropy, alpha=entropy_gradient)
        slope.mul_(self._probs).neg_().scatter_add_(0, self._index, log_prob_gradient.unsqueeze(0))
        return slope, None


class Bernoulli:
    """Independent bits. Logits and bits ``[n, N]``."""

    def __init__(self, logits: Tensor, log_std: Tensor, action: Tensor) -> None:
        self._logits, self._bits = logits, action
        log_on, log_off = logsigmoid(logits), logsigmoid(-logits)
        self._probs = log_on.exp()
        self.log_prob = torch.where(action > 0.5, log_on, log_off).sum(0)
        self.entropy = (self._probs * log_on + log_off.exp() * log_off).sum(0).neg_()

    def backward(self, log_prob_gradient: Tensor, entropy_gradient: float) -> tuple[Tensor, None]:
        """``d log p / d z = bit - p`` and ``d H / d z = -z p (1 - p)``."""
        probs = self._probs
        slope = -entropy_gradient * self._logits * probs * (1.0 - probs)
        return slope + log_prob_gradient * (self._bits - probs), None


class Gaussian:
    """Diagonal Gaussian. Mean and position ``[n, N]``, log_std ``[n]``."""

    def __init__(self, mean: Tensor, log_std: Tensor, action: Tensor) -> None:
        self._precision = torch.exp(-log_std).unsqueeze(1)
        self._deviation = (action - mean) * self._precision
        constant = log_std.sum() + len(mean) * _HALF_LOG_TWO_PI
        self.log_prob = self._deviation.square().sum(0).mul_(-0.5).sub_(constant)
        self.entropy = (constant + 0.5 * len(mean)).expand(mean.shape[1])

    def backward(self, log_prob_gradient: Tensor, entropy_gradient: float) -> tuple[Tensor, Tensor]:
        """With ``d = (x - m) / s``: ``d log p / d m = d / s`` and ``d log p / d log s = d^2 - 1``.

        The entropy of a row depends on log_std alone, with slope 1.
        """
        scale = (self._deviation.square().sub_(1.0) * log_prob_gradient).sum(1)
        scale.add_(entropy_gradient * len(log_prob_gradient))
        return log_prob_gradient * self._deviation * self._precision, scale


_KINDS: dict[HeadKind, type[Categorical] | type[Bernoulli] | type[Gaussian]] = {
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
}


@dataclass(slots=True)
class Joint:
    """The joint distribution of independent heads at given actions: sums over heads."""

    layout: ActionLayout
    parts: list[_Evaluated]
    log_prob: Tensor  # [N]
    entropy: Tensor  # [N]

    @classmethod
    def of(cls, layout: ActionLayout, outputs: Tensor, log_std: Tensor, packed: Tensor) -> Joint:
        """From outputs ``[num_outputs, N]``, log_std ``[num_log_std]`` and actions ``[slots, N]``."""
        parts: list[_Evaluated] = [
            _KINDS[head.kind](outputs[head.outputs], log_std[head.log_std], packed[head.slots])
            for head in layout.heads
        ]
        if len(parts) == 1:
            return cls(layout, parts, parts[0].log_prob, parts[0].entropy)
        log_prob = torch.stack([part.log_prob for part in parts]).sum(0)
        return cls(layout, parts, log_prob, torch.stack([part.entropy for part in parts]).sum(0))

    def backward(
        self, log_prob_gradient: Tensor, entropy_gradient: float, log_std_gradient: Tensor
    ) -> Tensor:
        """The gradient of the outputs ``[num_outputs, N]``; that of log_std is written into its vector.

        ``log_prob_gradient`` ``[N]``; ``entropy_gradient`` is the same number for every column.
        """
        outputs = []
        for head, part in zip(self.layout.heads, self.parts, strict=True):
            own, log_std = part.backward(log_prob_gradient, entropy_gradient)
            outputs.append(own)
            if log_std is not None:
                log_std_gradient[head.log_std] = log_std
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
