"""A multilayer perceptron, or several of one shape side by side, with a hand-written backward pass.

For off-policy learning, whose gradient steps are so many and so small that automatic differentiation would
be much of the time. All parameters lie in one flat vector, and so do their gradients: the optimizer,
clipping and target networks are an operation or two each. A test holds the backward pass against
automatic differentiation. Shapes: ``E`` towers, ``N`` rows, ``H`` units of the last layer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headrace.nets.flat import copy_out, take_in
from headrace.types import Array


class Mlp:
    """``E`` networks of equal shape, evaluated together. No torch graph is ever built.

    ``heads`` are the sizes of the output layers, whose outputs lie side by side. Each reads its own H
    units of the last hidden layer, which is as many times wider (all read the inputs if nothing is
    hidden). Invariant: every weight and bias is a view into ``values``, its gradient into ``gradients``.
    """

    def __init__(
        self,
        num_inputs: int,
        hidden: Sequence[int],
        heads: Sequence[int],
        *,
        tanh: bool,
        generator: torch.Generator,
        towers: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        """Weights and biases uniform within ``1 / sqrt(inputs)`` of 0, as torch's own linear layers."""
        self.tanh, self.towers, self.num_outputs = tanh, towers, sum(heads)
        self._shape = (num_inputs, tuple(hidden), tuple(heads))
        self._device = torch.device(device)
        layers = _layers(num_inputs, hidden, heads)
        size = towers * sum((inputs + 1) * outputs for inputs, outputs in layers)
        self.values = torch.empty(size, device=self._device)
        self.gradients = torch.zeros_like(self.values)
        split = len(layers) - len(heads)
        everything = list(
            zip(self._views(self.values, layers), self._views(self.gradients, layers), strict=True)
        )
        self._hidden = [_Layer(*value, *gradient) for value, gradient in everything[:split]]
        self._heads = [_Layer(*value, *gradient) for value, gradient in everything[split:]]
        self._reads = _slices([hidden[-1]] * len(heads)) if hidden else [slice(None)] * len(heads)
        self._writes = _slices(heads)
        self._input: Tensor
        self._buffers_of: dict[int, list[Tensor]] = {}
        for layer in (*self._hidden, *self._heads):
            bound = 1.0 / math.sqrt(max(1, layer.weight.shape[-2]))
            for tensor in (layer.weight, layer.bias):
                drawn = torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator)
                tensor.copy_(drawn)

    def _views(self, flat: Tensor, layers: Sequence[tuple[int, int]]) -> list[tuple[Tensor, Tensor]]:
        """Weight ``[inputs, outputs]`` and bias ``[outputs]`` of each layer, E in front if several."""
        views, offset, towers = [], 0, self.towers
        for inputs, outputs in layers:
            end = offset + towers * inputs * outputs
            weight, bias = flat[offset:end], flat[end : end + towers * outputs]
            offset = end + towers * outputs
            if towers == 1:
                views.append((weight.view(inputs, outputs), bias))
            else:
                views.append((weight.view(towers, inputs, outputs), bias.view(towers, 1, outputs)))
        return views

    def clone(self) -> Mlp:
        """Another network with the same values, for a target."""
        num_inputs, hidden, heads = self._shape
        other = Mlp(
            num_inputs,
            hidden,
            heads,
            tanh=self.tanh,
            generator=torch.Generator(),
            towers=self.towers,
            device=self._device,
        )
        other.values.copy_(self.values)
        return other

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs ``[N, outputs]``, or ``[E, N, outputs]`` of several towers, from inputs ``[N, inputs]``.

        The backward passes are about the newest forward pass.
        """
        buffers = self._buffers(inputs.shape[0])
        hidden = inputs if self.towers == 1 else inputs.expand(self.towers, *inputs.shape)
        self._input = hidden
        for layer, out in zip(self._hidden, buffers, strict=True):
            layer.apply(hidden, out)
            hidden = out.tanh_() if self.tanh else out.relu_()
        if len(self._heads) == 1:
            return self._heads[0].apply(hidden, None)
        parts = zip(self._heads, self._reads, strict=True)
        return torch.cat([head.apply(hidden[..., read], None) for head, read in parts], dim=-1)

    def backward(self, outputs_gradient: Tensor) -> None:
        """Set ``gradients`` from the gradient of the outputs, of their shape."""
        self._back(outputs_gradient, into_parameters=True)

    def input_gradient(self, outputs_gradient: Tensor, inputs: slice) -> Tensor:
        """The gradient of some of the inputs ``[N, ...]``, summed over towers; ``gradients`` are kept."""
        gradient = self._back(outputs_gradient, into_parameters=False)
        if not self._hidden:
            weight = torch.cat([head.weight for head in self._heads], dim=-1)
        else:
            weight = self._hidden[0].weight
        by_tower = torch.matmul(gradient, weight[..., inputs, :].transpose(-1, -2))
        return by_tower if self.towers == 1 else by_tower.sum(0)

    def _back(self, outputs_gradient: Tensor, *, into_parameters: bool) -> Tensor:
        """The gradient before the first layer's activation (of the outputs if nothing is hidden)."""
        buffers = self._buffers(self._input.shape[-2])
        last = buffers[-1] if buffers else self._input
        if into_parameters:
            for head, read, write in zip(self._heads, self._reads, self._writes, strict=True):
                head.backward(last[..., read], outputs_gradient[..., write])
        if not buffers:
            return outputs_gradient
        parts = [
            torch.matmul(outputs_gradient[..., write], head.weight.transpose(-1, -2))
            for head, write in zip(self._heads, self._writes, strict=True)
        ]
        gradient = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        for index in range(len(buffers) - 1, -1, -1):
            self._through_activation(gradient, buffers[index])
            if into_parameters:
                self._hidden[index].backward(buffers[index - 1] if index else self._input, gradient)
            if index:
                gradient = torch.matmul(gradient, self._hidden[index].weight.transpose(-1, -2))
        return gradient

    def _through_activation(self, gradient: Tensor, activated: Tensor) -> None:
        """Multiply by the activation's slope, in place."""
        if self.tanh:
            torch.ops.aten.tanh_backward.grad_input(gradient, activated, grad_input=gradient)
        else:
            torch.ops.aten.threshold_backward.grad_input(gradient, activated, 0, grad_input=gradient)

    def _buffers(self, rows: int) -> list[Tensor]:
        """The outputs of the hidden layers for N rows, used again."""
        buffers = self._buffers_of.get(rows)
        if buffers is None:
            if len(self._buffers_of) >= 4:  # a few sizes alternate in a run; never keep many
                self._buffers_of.clear()
            lead = () if self.towers == 1 else (self.towers,)
            buffers = [
                torch.empty(*lead, rows, layer.weight.shape[-1], device=self._device)
                for layer in self._hidden
            ]
            self._buffers_of[rows] = buffers
        return buffers

    def parameters(self) -> dict[str, Array]:
        """Copies of weights ``[inputs, outputs]`` and biases ``[outputs]`` by name, E in front if several."""
        return copy_out(self._named())

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Inverse of :meth:`parameters`; ValueError if one is absent or has another shape."""
        take_in(self._named(), parameters)

    def _named(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for kind, layers in (("hidden", self._hidden), ("heads", self._heads)):
            for index, layer in enumerate(layers):
                named[f"{kind}.{index}.weight"], named[f"{kind}.{index}.bias"] = layer.weight, layer.bias
        return named


class _Layer:
    """Weight ``[inputs, outputs]`` and bias ``[outputs]`` with their gradients; E in front if several."""

    def __init__(self, weight: Tensor, bias: Tensor, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
        self.weight, self.bias = weight, bias
        self._weight_gradient, self._bias_gradient = weight_gradient, bias_gradient
        self._several = weight.dim() == 3

    def apply(self, inputs: Tensor, out: Tensor | None) -> Tensor:
        """Inputs ``[N, inputs]`` to ``[N, outputs]``; into ``out`` if given."""
        multiply = torch.baddbmm if self._several else torch.addmm
        return multiply(self.bias, inputs, self.weight, out=out)

    def backward(self, inputs: Tensor, gradient: Tensor) -> None:
        """Set the gradients from that of the layer's outputs."""
        if self._several:
            torch.bmm(inputs.transpose(1, 2), gradient, out=self._weight_gradient)
            torch.sum(gradient, 1, keepdim=True, out=self._bias_gradient)
        else:
            torch.mm(inputs.t(), gradient, out=self._weight_gradient)
            torch.sum(gradient, 0, out=self._bias_gradient)


def _layers(num_inputs: int, hidden: Sequence[int], heads: Sequence[int]) -> list[tuple[int, int]]:
    """Inputs and outputs of each layer: the hidden ones, then the heads."""
    if not hidden:
        return [(num_inputs, outputs) for outputs in heads]
    sizes = [num_inputs, *hidden[:-1], hidden[-1] * len(heads)]
    return [*itertools.pairwise(sizes), *((hidden[-1], outputs) for outputs in heads)]


def _slices(sizes: Sequence[int]) -> list[slice]:
    edges = [0, *itertools.accumulate(sizes)]
    return [slice(*edge) for edge in itertools.pairwise(edges)]
