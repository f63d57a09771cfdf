"""Networks: from encoded observations to the outputs that a distribution of actions reads, and a value."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headrace.config.sections import PolicyConfig
from headrace.errors import ConfigurationError
from headrace.nets.actions import ActionLayout
from headrace.nets.features import FeatureEncoder, channels_first, image_shape
from headrace.nets.twin_mlp import FLAT, HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN, TwinMlp

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec, LeafSpec

IMAGE = "image/"
"""Prefix of an image's name among a network's inputs; the leaf's path follows."""

_CNN_FEATURES = 512


class NatureCnn(nn.Module):
    """A trunk shared by policy and value: Mnih et al., "Human-level control" (2015), extended data table 1.

    Each image has its own convolutions; flat features join before the last hidden layer.
    """

    def __init__(self, images: tuple[LeafSpec, ...], num_features: int, num_outputs: int) -> None:
        super().__init__()
        self._images = [(leaf.path, channels_first(leaf), len(leaf.shape) == 2) for leaf in images]
        self._has_flat = num_features > 0
        self.convolutions = nn.ModuleList()
        joined = num_features
        for leaf in images:
            height, width, channels = image_shape(leaf)
            convolutions = nn.Sequential(
                nn.Conv2d(channels, 32, 8, stride=4),
                nn.ReLU(),
                nn.Conv2d(32, 64, 4, stride=2),
                nn.ReLU(),
                nn.Conv2d(64, 64, 3, stride=1),
                nn.ReLU(),
                nn.Flatten(),
            )
            self.convolutions.append(convolutions)
            with torch.no_grad():
                joined += int(convolutions(torch.zeros(1, channels, height, width)).shape[1])
        self.trunk = nn.Sequential(nn.Linear(joined, _CNN_FEATURES), nn.ReLU())
        self.policy_head = nn.Linear(_CNN_FEATURES, num_outputs)
        self.value_head = nn.Linear(_CNN_FEATURES, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                gain = {id(self.policy_head): POLICY_GAIN, id(self.value_head): VALUE_GAIN}
                nn.init.orthogonal_(module.weight, gain.get(id(module), HIDDEN_GAIN))
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, inputs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs ``[N, num_outputs]`` and values ``[N]``."""
        parts = [inputs[FLAT]] if self._has_flat else []
        for convolutions, (path, first, single) in zip(self.convolutions, self._images, strict=True):
            image = inputs[IMAGE + path].float().div_(255.0)
            if single:
                image = image.unsqueeze(1)
            elif not first:
                image = image.permute(0, 3, 1, 2)
            parts.append(convolutions(image))
        trunk = self.trunk(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))
        return self.policy_head(trunk), self.value_head(trunk).squeeze(1)


def make_network(
    spec: EnvironmentSpec, policy: PolicyConfig, encoder: FeatureEncoder, layout: ActionLayout
) -> nn.Module:
    """The network that ``policy.network`` names, freshly initialized from torch's global generator.

    A user's ``module:factory`` is called with (observation spec, action spec, the policy section) and
    returns a module whose ``forward`` takes a mapping with ``"flat"`` ``[N, num_features]`` (everything
    encoded, images too) and returns outputs ``[N, num_outputs of ActionLayout(action spec)]`` and
    values ``[N]``. ConfigurationError, with the path ``policy.network``, if it can't be used.
    """
    if ":" in policy.network:
        return _user_network(spec, policy, encoder, layout)
    if policy.network not in ("auto", "mlp", "cnn"):
        raise ConfigurationError(
            [f"policy.network: {policy.network!r} is none of auto, mlp, cnn and no module:factory"]
        )
    if encoder.image_leaves:
        return NatureCnn(encoder.image_leaves, encoder.num_features, layout.num_outputs)
    return TwinMlp(encoder.num_features, layout.num_outputs, policy)


def _user_network(
    spec: EnvironmentSpec, policy: PolicyConfig, encoder: FeatureEncoder, layout: ActionLayout
) -> nn.Module:
    module_name, _, attribute = policy.network.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError([f"policy.network: can't import {policy.network!r}: {error}"]) from error
    network = factory(spec.observation, spec.action, policy)
    if not isinstance(network, nn.Module):
        raise ConfigurationError(
            [f"policy.network: {policy.network!r} gave a {type(network).__name__}, not a torch.nn.Module"]
        )
    try:
        with torch.no_grad():
            outputs, values = network({FLAT: torch.zeros(2, encoder.num_features)})
        shapes = tuple(outputs.shape), tuple(values.shape)
    except Exception as error:  # a user's code may raise anything; it is reported, not hidden
        raise ConfigurationError(
            [f"policy.network: {policy.network!r} fails on rows of {encoder.num_features} features: {error}"]
        ) from error
    expected = ((2, layout.num_outputs), (2,))
    if shapes != expected:
        raise ConfigurationError(
            [f"policy.network: {policy.network!r} gives shapes {shapes} for two rows, expected {expected}"]
        )
    return network
