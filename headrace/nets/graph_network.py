"""A torch module that looks like an :class:`headrace.nets.mlp.Mlp`: flat parameters, explicit backward."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headrace.nets.flat import copy_out, flatten, take_in
from headrace.types import Array


class GraphNetwork:
    """A module that gives outputs ``[N, n]`` and values ``[N]``, as :func:`make_network` makes them.

    ``with_value``: the outputs here are the value and the module's outputs side by side, else the
    module's outputs alone. Differentiated by torch.
    """

    def __init__(self, module: nn.Module, *, with_value: bool) -> None:
        self._module, self._with_value = module, with_value
        self.values, self.gradients = flatten(list(module.parameters()))
        self._outputs: Tensor

    def clone(self) -> GraphNetwork:
        """Another network with the same values, for a target."""
        return GraphNetwork(copy.deepcopy(self._module), with_value=self._with_value)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Outputs ``[N, n]`` or ``[N, 1 + n]``, without a graph."""
        with torch.no_grad():
            return self._forward(inputs)

    def forward_for_backward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """As :meth:`forward`; :meth:`backward` is about the newest one."""
        with torch.enable_grad():
            self._outputs = self._forward(inputs)
        return self._outputs.detach()

    def _forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        outputs, values = self._module(inputs)
        return torch.cat([values.unsqueeze(1), outputs], dim=1) if self._with_value else outputs

    def backward(self, outputs_gradient: Tensor) -> None:
        """Set ``gradients`` from the gradient of the outputs, of their shape."""
        self.gradients.zero_()
        torch.autograd.backward(self._outputs, outputs_gradient)

    def named_parameters(self) -> dict[str, Tensor]:
        """All parameters by name."""
        return {name: parameter.data for name, parameter in self._module.named_parameters()}

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters by name."""
        return copy_out(self.named_parameters())

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Inverse of :meth:`parameters`; ValueError if one is absent or has another shape."""
        take_in(self.named_parameters(), parameters)
