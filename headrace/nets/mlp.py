"""A multilayer perceptron, or several of one shape side by side, with a hand-written backward pass.

For off-policy learning, whose gradient steps are so many and so small that automatic differentiation would
be much of the time. All parameters lie in one flat vector, and so do their gradients: the optimizer,
clipping and target networks are an operation or two each. A test holds the backward pass against
automatic differentiation. Shapes: ``E`` towers, ``N`` rows, ``H`` units of the last layer.
"""

from __future__ import annotations

import copy
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
        values, gradients = _Cursor(self.values, towers), _Cursor(self.gradients, towers)
        split = len(layers) - len(heads)
        self._hidden = [
            _Layer(*values.take(n_in, n_out), *gradients.take(n_in, n_out)) for n_in, n_out in layers[:split]
        ]
        self._heads = [
            _Head(*values.take(n_out, n_in, n_out), *gradients.take(n_out, n_in, n_out))
            for n_in, n_out in layers[split:]
        ]
        self._reads = _slices([hidden[-1]] * len(heads)) if hidden else [slice(None)] * len(heads)
        self._writes = _slices(heads)
        self._input: Tensor
        self._buffers_of: dict[int, list[Tensor]] = {}
        for (n_in, _), name in zip(layers, self._layer_names(), strict=True):
            bound = 1.0 / math.sqrt(max(1, n_in))
            for kind in ("weight", "bias"):
                tensor = self.named_parameters()[f"{name}.{kind}"]
                tensor.copy_(torch.empty(tensor.shape).uniform_(-bound, bound, generator=generator))

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

    def tower(self, index: int) -> Mlp:
        """One of several towers alone, to evaluate and for :meth:`input_gradient`. Shares its parameters."""
        alone = copy.copy(self)
        alone.towers, alone._buffers_of = 1, {}
        alone._hidden = [layer.tower(index) for layer in self._hidden]
        alone._heads = [layer.tower(index) for layer in self._heads]
        return alone

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
            return self._heads[0].apply(hidden)
        parts = zip(self._heads, self._reads, strict=True)
        return torch.cat([head.apply(hidden[..., read]) for head, read in parts], dim=-1)

    def backward(self, outputs_gradient: Tensor) -> None:
        """Set ``gradients`` from the gradient of the outputs, of their shape."""
        self._back(outputs_gradient, into_parameters=True)

    def input_gradient(self, outputs_gradient: Tensor, inputs: slice) -> Tensor:
        """The gradient of some of the inputs ``[N, ...]``, summed over towers; ``gradients`` are kept."""
        gradient = self._back(outputs_gradient, into_parameters=False)
        if self._hidden:
            weight = self._hidden[0].weight[..., inputs, :].transpose(-1, -2)
        else:
            weight = torch.cat([head.weight for head in self._heads], dim=-2)[..., inputs]
        if self.towers == 1:
            return gradient @ weight
        # Few inputs are asked for, and a batched product is slow at that.
        summed = gradient[0] @ weight[0]
        for tower in range(1, self.towers):
            summed.addmm_(gradient[tower], weight[tower])
        return summed

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
            head.inputs_gradient(outputs_gradient[..., write])
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
        """Copies of weights and biases by name, as :class:`_Layer` and :class:`_Head` hold them."""
        return copy_out(self.named_parameters())

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Inverse of :meth:`parameters`; ValueError if one is absent or has another shape."""
        take_in(self.named_parameters(), parameters)

    def _layer_names(self) -> list[str]:
        names = [f"hidden.{index}" for index in range(len(self._hidden))]
        return [*names, *(f"heads.{index}" for index in range(len(self._heads)))]

    def named_parameters(self) -> dict[str, Tensor]:
        """Views of weights and biases by name, as :class:`_Layer` and :class:`_Head` hold them."""
        layers: list[_Layer | _Head] = [*self._hidden, *self._heads]
        named: dict[str, Tensor] = {}
        for name, layer in zip(self._layer_names(), layers, strict=True):
            named[f"{name}.weight"], named[f"{name}.bias"] = layer.weight, layer.bias
        return named


class _Layer:
    """Weight ``[inputs, outputs]`` and bias ``[outputs]`` with their gradients; E in front if several."""

    def __init__(self, weight: Tensor, bias: Tensor, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
        self.weight, self.bias = weight, bias
        self._weight_gradient, self._bias_gradient = weight_gradient, bias_gradient
        self._several = weight.dim() == 3

    def tower(self, index: int) -> _Layer:
        """One of several towers, as views."""
        weight, bias = self.weight[index], self.bias[index, 0]
        return _Layer(weight, bias, self._weight_gradient[index], self._bias_gradient[index, 0])

    def apply(self, inputs: Tensor, out: Tensor) -> None:
        """Inputs ``[N, inputs]`` to ``[N, outputs]``, into ``out``."""
        multiply = torch.baddbmm if self._several else torch.addmm
        multiply(self.bias, inputs, self.weight, out=out)

    def backward(self, inputs: Tensor, gradient: Tensor) -> None:
        """Set the gradients from that of the layer's outputs."""
        if self._several:
            torch.bmm(inputs.transpose(1, 2), gradient, out=self._weight_gradient)
            torch.sum(gradient, 1, keepdim=True, out=self._bias_gradient)
        else:
            torch.mm(inputs.t(), gradient, out=self._weight_gradient)
            torch.sum(gradient, 0, out=self._bias_gradient)


class _Head:
    """Weight ``[outputs, inputs]`` and bias ``[outputs]`` with their gradients; E in front if several.

    Heads have few outputs. Products with a thin matrix are fast when it lies this way, and slow when they
    are batched: towers take turns.
    """

    def __init__(self, weight: Tensor, bias: Tensor, weight_gradient: Tensor, bias_gradient: Tensor) -> None:
        self.weight, self.bias = weight, bias
        self._weight_gradient, self._bias_gradient = weight_gradient, bias_gradient
        self._several = weight.dim() == 3
        self._single = weight.shape[-2] == 1

    def tower(self, index: int) -> _Head:
        """One of several towers, as views."""
        weight, bias = self.weight[index], self.bias[index, 0]
        return _Head(weight, bias, self._weight_gradient[index], self._bias_gradient[index, 0])

    def apply(self, inputs: Tensor) -> Tensor:
        """Inputs ``[N, inputs]`` to ``[N, outputs]``."""
        if not self._several:
            return torch.addmm(self.bias, inputs, self.weight.t())
        towers = zip(self.bias, inputs, self.weight, strict=True)
        return torch.stack([torch.addmm(bias, rows, weight.t()) for bias, rows, weight in towers])

    def backward(self, inputs: Tensor, gradient: Tensor) -> None:
        """Set the gradients from that of the head's outputs."""
        torch.sum(gradient, -2, keepdim=self._several, out=self._bias_gradient)
        if not self._several:
            torch.mm(gradient.t(), inputs, out=self._weight_gradient)
            return
        for own, rows, out in zip(gradient, inputs, self._weight_gradient, strict=True):
            torch.mm(own.t(), rows, out=out)

    def inputs_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of the inputs ``[N, inputs]``."""
        return gradient * self.weight if self._single else torch.matmul(gradient, self.weight)


class _Cursor:
    """Hands out views of a flat vector, one after another."""

    def __init__(self, flat: Tensor, towers: int) -> None:
        self._flat, self._towers, self._offset = flat, towers, 0

    def take(self, rows: int, columns: int, outputs: int | None = None) -> tuple[Tensor, Tensor]:
        """A weight ``[rows, columns]`` and its bias, ``[columns]`` unless it says otherwise; E in front."""
        outputs = columns if outputs is None else outputs
        if self._towers == 1:
            return self._view(rows, columns), self._view(outputs)
        return self._view(self._towers, rows, columns), self._view(self._towers, 1, outputs)

    def _view(self, *shape: int) -> Tensor:
        start = self._offset
        self._offset += math.prod(shape)
        return self._flat[start : self._offset].view(shape)


def _layers(num_inputs: int, hidden: Sequence[int], heads: Sequence[int]) -> list[tuple[int, int]]:
    """Inputs and outputs of each layer: the hidden ones, then the heads."""
    if not hidden:
        return [(num_inputs, outputs) for outputs in heads]
    sizes = [num_inputs, *hidden[:-1], hidden[-1] * len(heads)]
    return [*itertools.pairwise(sizes), *((hidden[-1], outputs) for outputs in heads)]


def _slices(sizes: Sequence[int]) -> list[slice]:
    edges = [0, *itertools.accumulate(sizes)]
    return [slice(*edge) for edge in itertools.pairwise(edges)]
