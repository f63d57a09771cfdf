"""The policy as the learner and the torch actor hold it: a network, its distribution, one flat parameter vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from headrace.config.sections import PolicyConfig
from headrace.nets.actions import ActionLayout
from headrace.nets.distributions import log_prob_and_entropy
from headrace.nets.features import FeatureEncoder
from headrace.nets.networks import FLAT, make_network
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_PREFIX = "network/"
LOG_STD = "network/log_std"


class TorchPolicy:
    """A network with its parameters in one flat vector.

    Invariant: every parameter is a view into ``values`` and its gradient a view into ``gradients`` (both
    ``[num_parameters]``), so that clipping and the optimizer are a handful of operations whatever the
    network's depth.
    """

    def __init__(
        self, spec: EnvironmentSpec, policy: PolicyConfig, *, seed: int, device: str = "cpu"
    ) -> None:
        """Initialized from ``seed`` alone; torch's global generator is left as it was."""
        self.encoder = FeatureEncoder(spec.observation, policy)
        self.layout = ActionLayout(spec.action)
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = make_network(spec, policy, self.encoder, self.layout)
        self.network.to(self.device)
        log_std = torch.full((self.layout.num_log_std,), policy.initial_log_std, device=self.device)
        self.log_std = nn.Parameter(log_std)
        self._named = {_PREFIX + name: value for name, value in self.network.named_parameters()}
        if self.layout.num_log_std:
            self._named[LOG_STD] = self.log_std
        self.values, self.gradients = self._flatten()

    def _flatten(self) -> tuple[Tensor, Tensor]:
        parameters = list(self._named.values())
        values = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        gradients = torch.zeros_like(values)
        offset = 0
        for parameter in parameters:
            end = offset + parameter.numel()
            parameter.data = values[offset:end].view(parameter.shape)
            parameter.grad = gradients[offset:end].view(parameter.shape)
            offset = end
        return values, gradients

    def inputs(self, leaves: Mapping[str, Array]) -> dict[str, Tensor]:
        """Encoded observations ``[N, ...]`` as tensors on the policy's device."""
        inputs = {f"image/{path}": self.tensor(image) for path, image in self.encoder.images(leaves).items()}
        if self.encoder.num_features:
            inputs[FLAT] = self.tensor(self.encoder.flat(leaves))
        return inputs

    def tensor(self, array: Array) -> Tensor:
        """A copy of an array on the policy's device."""
        return torch.tensor(array, device=self.device)

    def forward(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs ``[N, num_outputs]`` and values ``[N]``, in the network's own units."""
        outputs, values = self.network(inputs)
        return outputs, values

    def evaluate(self, outputs: Tensor, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Log probability and entropy ``[N]`` of packed actions ``[N, slots]``."""
        return log_prob_and_entropy(self.layout, outputs, self.log_std, packed)

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters by name."""
        return {name: np.array(value.detach().cpu().numpy()) for name, value in self._named.items()}

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Take parameters by name; ValueError if one is absent or has another shape."""
        for name, value in self._named.items():
            if name not in parameters:
                raise ValueError(f"parameter {name} is absent; was it made with another policy.network?")
            if tuple(parameters[name].shape) != tuple(value.shape):
                raise ValueError(
                    f"parameter {name} has shape {tuple(parameters[name].shape)}, expected {tuple(value.shape)}"
                )
        with torch.no_grad():
            for name, value in self._named.items():
                value.copy_(torch.tensor(parameters[name]))
        self.encoder.load(parameters)
