"""The policy as learner and torch actor hold it: network, distribution, one flat vector of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headrace.config.sections import PolicyConfig
from headrace.nets.actions import ActionLayout
from headrace.nets.distributions import Joint
from headrace.nets.features import FeatureEncoder
from headrace.nets.flat import copy_out, flatten, take_in
from headrace.nets.inputs import input_tensors
from headrace.nets.networks import make_network
from headrace.nets.twin_mlp import TwinMlp
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_PREFIX = "network/"
_LOG_STD = "network/log_std"


@dataclass(slots=True)
class Evaluation:
    """What a policy says of N given actions, and what the way back needs."""

    log_prob: Tensor  # [N]
    entropy: Tensor  # [N]
    value: Tensor  # [N], in the network's own units
    joint: Joint
    differentiable: tuple[Tensor, Tensor] | None  # outputs and values with torch's graph behind them


class TorchPolicy:
    """A network with its parameters in one flat vector.

    Invariant: every parameter is a view into ``values`` and its gradient a view into ``gradients`` (both
    ``[num_parameters]``), so that clipping and the optimizer are a handful of operations whatever the
    network's depth.
    """

    def __init__(
        self, spec: EnvironmentSpec, policy: PolicyConfig, *, seed: int, device: str = "cpu"
    ) -> None:
        """Initialized from ``seed`` alone; torch's global generator is left as it was.

        UnsupportedSpaceError or ConfigurationError if the spaces or the network can't be used.
        """
        self.encoder = FeatureEncoder(spec.observation, policy)
        self.layout = ActionLayout(spec.action)
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = make_network(spec, policy, self.encoder, self.layout)
        self.network.to(self.device)
        log_std = torch.full((self.layout.num_log_std,), policy.initial_log_std, device=self.device)
        self._log_std = nn.Parameter(log_std)
        self._named = {_PREFIX + name: value for name, value in self.network.named_parameters()}
        self._named[_LOG_STD] = self._log_std
        self.values, self.gradients = flatten(list(self._named.values()))
        if self.layout.num_log_std == 0:
            del self._named[_LOG_STD]

    def inputs(self, leaves: Mapping[str, Array]) -> dict[str, Tensor]:
        """Encoded observations ``[N, ...]`` as tensors on the policy's device."""
        return input_tensors(self.encoder, leaves, self.device)

    def tensor(self, array: Array) -> Tensor:
        """A copy of an array on the policy's device."""
        return torch.tensor(array, device=self.device)

    def forward(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs ``[num_outputs, N]`` and values ``[N]``, in the network's own units."""
        outputs, values = self.network(inputs)
        return outputs.t(), values

    @torch.no_grad()
    def evaluate(self, inputs: Mapping[str, Tensor], packed: Tensor) -> Evaluation:
        """Log probability, entropy and value ``[N]`` of packed actions ``[slots, N]``."""
        differentiable = None
        if isinstance(self.network, TwinMlp):
            outputs, values = self.network.forward_for_backward(inputs)
        else:
            with torch.enable_grad():
                differentiable = self.forward(inputs)
            outputs, values = differentiable[0].detach(), differentiable[1].detach()
        joint = Joint.of(self.layout, outputs, self._log_std, packed)
        return Evaluation(joint.log_prob, joint.entropy, values, joint, differentiable)

    @torch.no_grad()
    def backward(
        self,
        evaluation: Evaluation,
        *,
        log_prob_gradient: Tensor,
        entropy_gradient: float,
        value_gradient: Tensor,
    ) -> None:
        """Fill ``gradients`` from a loss's gradients by log probability and value ``[N]`` and by entropy.

        ``evaluation`` must be the newest one.
        """
        assert self._log_std.grad is not None
        outputs_gradient = evaluation.joint.backward(log_prob_gradient, entropy_gradient, self._log_std.grad)
        if evaluation.differentiable is None:
            assert isinstance(self.network, TwinMlp)
            self.network.backward(outputs_gradient, value_gradient)
        else:
            for parameter in self.network.parameters():
                assert parameter.grad is not None
                parameter.grad.zero_()
            torch.autograd.backward(evaluation.differentiable, (outputs_gradient, value_gradient))

    def named_parameters(self) -> dict[str, Tensor]:
        """All parameters by name, in the order in which they lie in ``values``."""
        return {name: parameter.data for name, parameter in self._named.items()}

    def parameters(self) -> dict[str, Array]:
        """Copies of all parameters by name."""
        return copy_out(self._named)

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Take parameters and normalizers by name; ValueError if one is absent or has another shape."""
        take_in(self._named, parameters)
        self.encoder.load(parameters)
