"""The default network: a policy tower and a value tower of equal shape, with a hand-written backward pass.

At minibatches of a few hundred rows, automatic differentiation costs more than the mathematics. Here both
towers go through each layer as one batched product, into buffers that are used again, and the gradients
land where the optimizer reads them. A test holds the backward pass against automatic differentiation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headrace.config.sections import PolicyConfig

FLAT = "flat"
"""Name of the flat features among a network's inputs."""

HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN = math.sqrt(2.0), 0.01, 1.0
"""Gains of the orthogonal initialization: Huang et al., "The 37 Implementation Details of Proximal Policy
Optimization" (2022), detail 2."""

_POLICY, _VALUE = 0, 1


class TwinMlp(nn.Module):
    """Two towers side by side; weights are stored ``[2, inputs, outputs]`` (0: policy, 1: value).

    ``H`` below is the number of units of a layer, ``N`` the number of rows.
    """

    _minus_one: Tensor

    def __init__(self, num_features: int, num_outputs: int, policy: PolicyConfig) -> None:
        """Initialized from torch's global generator."""
        super().__init__()
        self.tanh = policy.activation == "tanh"
        sizes = [num_features, *policy.hidden]
        self.weights = nn.ParameterList(
            nn.Parameter(torch.stack([_orthogonal(n_in, n_out, HIDDEN_GAIN) for _ in range(2)]))
            for n_in, n_out in itertools.pairwise(sizes)
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(2, 1, size)) for size in policy.hidden)
        self.policy_weight = nn.Parameter(_orthogonal(num_outputs, sizes[-1], POLICY_GAIN))
        self.policy_bias = nn.Parameter(torch.zeros(num_outputs))
        self.value_weight = nn.Parameter(_orthogonal(sizes[-1], 1, VALUE_GAIN).squeeze(1))
        self.value_bias = nn.Parameter(torch.zeros(1))
        self.register_buffer("_minus_one", torch.tensor(-1.0), persistent=False)
        self._buffers_of: dict[int, _Buffers] = {}

    def forward(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs ``[N, num_outputs]`` and values ``[N]``; differentiable by torch as usual."""
        hidden = inputs[FLAT].expand(2, *inputs[FLAT].shape)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            hidden = torch.baddbmm(bias, hidden, weight)
            hidden = torch.tanh(hidden) if self.tanh else torch.relu(hidden)
        outputs, values = self._heads(hidden)
        return outputs.t(), values

    def forward_for_backward(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As :meth:`forward` but feature-major, ``[num_outputs, N]``, and without torch's graph.

        Call :meth:`backward` before the next one.

        tanh(x) is computed as ``2 sigmoid(2 x) - 1``: torch does that three times faster, and it is
        exact to 2e-7.
        """
        flat = inputs[FLAT]
        buffers = self._buffers_for(flat.shape[0])
        hidden = flat.expand(2, *flat.shape)
        buffers.hidden[0] = hidden
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            out = buffers.hidden[layer + 1]
            if self.tanh:
                torch.baddbmm(bias, hidden, weight, beta=2.0, alpha=2.0, out=out).sigmoid_()
                torch.add(self._minus_one, out, alpha=2.0, out=out)
            else:
                torch.baddbmm(bias, hidden, weight, out=out).relu_()
            hidden = out
        return self._heads(hidden)

    def _heads(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        outputs = torch.mm(self.policy_weight, hidden[_POLICY].t()).add(self.policy_bias.unsqueeze(1))
        return outputs, torch.mv(hidden[_VALUE], self.value_weight).add(self.value_bias)

    def backward(self, outputs_gradient: Tensor, value_gradient: Tensor) -> None:
        """Set every parameter's ``grad``, in place, from ``[num_outputs, N]`` and ``[N]``."""
        buffers = self._buffers_for(value_gradient.shape[0])
        last = buffers.hidden[-1]
        torch.mm(outputs_gradient, last[_POLICY], out=_grad(self.policy_weight))
        torch.sum(outputs_gradient, 1, out=_grad(self.policy_bias))
        torch.mv(last[_VALUE].t(), value_gradient, out=_grad(self.value_weight))
        torch.sum(value_gradient, 0, keepdim=True, out=_grad(self.value_bias))
        if not len(self.weights):
            return
        gradient = buffers.gradient[-1]
        torch.mm(outputs_gradient.t(), self.policy_weight, out=gradient[_POLICY])
        torch.outer(value_gradient, self.value_weight, out=gradient[_VALUE])
        for layer in range(len(self.weights) - 1, -1, -1):
            gradient, hidden = buffers.gradient[layer], buffers.hidden[layer + 1]
            if self.tanh:  # d tanh(x) = 1 - tanh(x)^2
                gradient.addcmul_(gradient, hidden.square_(), value=-1.0)
            else:
                gradient.mul_(hidden.sign_())
            torch.bmm(buffers.hidden[layer].transpose(1, 2), gradient, out=_grad(self.weights[layer]))
            torch.sum(gradient, 1, keepdim=True, out=_grad(self.biases[layer]))
            if layer > 0:
                torch.bmm(gradient, self.weights[layer].transpose(1, 2), out=buffers.gradient[layer - 1])

    def _buffers_for(self, rows: int) -> _Buffers:
        buffers = self._buffers_of.get(rows)
        if buffers is None:
            if len(self._buffers_of) >= 4:  # two sizes alternate in a run; never keep many
                self._buffers_of.clear()
            buffers = _Buffers(rows, [int(bias.shape[-1]) for bias in self.biases], self.policy_bias.device)
            self._buffers_of[rows] = buffers
        return buffers


class _Buffers:
    """Scratch for N rows: ``hidden[0]`` is the input, ``hidden[i + 1]`` and ``gradient[i]`` are layer i's."""

    def __init__(self, rows: int, units: list[int], device: torch.device) -> None:
        self.hidden = [torch.empty(0), *(torch.empty(2, rows, unit, device=device) for unit in units)]
        self.gradient = [torch.empty(2, rows, unit, device=device) for unit in units]


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "TorchPolicy gives every parameter its gradient"
    return parameter.grad


def _orthogonal(num_inputs: int, num_outputs: int, gain: float) -> Tensor:
    return nn.init.orthogonal_(torch.empty(num_inputs, num_outputs), gain)
