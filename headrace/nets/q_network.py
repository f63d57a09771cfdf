"""The values of all actions of a discrete choice, for learning: plain or dueling, from features or images."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.config.sections import PolicyConfig
from headrace.nets.acting_network import NETWORK
from headrace.nets.action_rules import num_choices
from headrace.nets.actions import ActionLayout
from headrace.nets.features import FeatureEncoder, is_plain_mlp
from headrace.nets.graph_network import GraphNetwork
from headrace.nets.inputs import input_tensors
from headrace.nets.mlp import Mlp
from headrace.nets.networks import make_network
from headrace.nets.twin_mlp import FLAT
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


class QNetwork:
    """Q of A actions: ``[N, A]``. With ``dueling``, ``Q = V + advantage - mean advantage``.

    Wang et al., "Dueling Network Architectures" (2016), equation 9: two streams after the shared layers.
    """

    def __init__(
        self, spec: EnvironmentSpec, policy: PolicyConfig, *, dueling: bool, seed: int, device: str = "cpu"
    ) -> None:
        """Initialized from ``seed`` alone. UnsupportedSpaceError or ConfigurationError if it can't be."""
        self.num_actions = num_choices(spec.action, "dqn")
        self.encoder, self.layout = FeatureEncoder(spec.observation, policy), ActionLayout(spec.action)
        self.device, self._dueling = torch.device(device), dueling
        self._body: Mlp | GraphNetwork
        if is_plain_mlp(policy, self.encoder):
            self._body = Mlp(
                self.encoder.num_features,
                policy.hidden,
                (1, self.num_actions) if dueling else (self.num_actions,),
                tanh=policy.activation == "tanh",
                generator=torch.Generator().manual_seed(seed),
                device=device,
            )
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                module = make_network(spec, policy, self.encoder, self.layout)
            self._body = GraphNetwork(module.to(self.device), with_value=dueling)

    @property
    def values(self) -> Tensor:
        """All parameters ``[num_parameters]``."""
        return self._body.values

    @property
    def gradients(self) -> Tensor:
        """Their gradients ``[num_parameters]``."""
        return self._body.gradients

    def inputs(self, leaves: Mapping[str, Array]) -> dict[str, Tensor]:
        """Encoded observations ``[N, ...]`` as tensors on the network's device."""
        return input_tensors(self.encoder, leaves, self.device)

    def target(self) -> QNetwork:
        """A copy that stays as it is until it is moved."""
        target = copy.copy(self)
        target._body = self._body.clone()
        return target

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Q ``[N, A]``; no backward pass can follow."""
        return self._combined(_forward(self._body, inputs))

    def forward_for_backward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Q ``[N, A]``; :meth:`backward` is about the newest one, with no other pass between."""
        if isinstance(self._body, Mlp):
            return self._combined(self._body.forward(inputs[FLAT]))
        return self._combined(self._body.forward_for_backward(inputs))

    def _combined(self, outputs: Tensor) -> Tensor:
        if not self._dueling:
            return outputs
        advantage = outputs[:, 1:]
        return advantage + (outputs[:, :1] - advantage.mean(1, keepdim=True))

    def backward(self, q_gradient: Tensor) -> None:
        """Set ``gradients`` from the gradient of Q ``[N, A]``."""
        if self._dueling:
            value = q_gradient.sum(1, keepdim=True)
            q_gradient = torch.cat([value, q_gradient - value / self.num_actions], dim=1)
        self._body.backward(q_gradient)

    def named_parameters(self) -> dict[str, Tensor]:
        """All parameters by name."""
        return {NETWORK + name: tensor for name, tensor in self._body.named_parameters().items()}

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters by name."""
        return {NETWORK + name: value for name, value in self._body.parameters().items()}

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Inverse of :meth:`parameters`; ValueError if one is absent or has another shape."""
        own = {name.removeprefix(NETWORK): value for name, value in parameters.items()}
        self._body.load(own)


def _forward(body: Mlp | GraphNetwork, inputs: Mapping[str, Tensor]) -> Tensor:
    return body.forward(inputs[FLAT]) if isinstance(body, Mlp) else body.forward(inputs)
