"""Acting networks computed by torch: images, a user's own network, and wide layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from headrace.config.sections import Config, PolicyConfig
from headrace.nets.acting_network import NETWORK, Float32Array
from headrace.nets.features import FeatureEncoder
from headrace.nets.mlp import Mlp
from headrace.nets.q_network import QNetwork
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


class TorchQ:
    """Values of all actions."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, dueling: bool) -> None:
        self._network = QNetwork(spec, config.policy, dueling=dueling, seed=0)

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Compute with these from now on. ValueError if they belong to another network."""
        self._network.load(parameters)

    def outputs(self, observation: Mapping[str, Array]) -> Float32Array:
        """Q ``[A, B]`` for leaves ``[B, ...]``."""
        q: Float32Array = self._network.forward(self._network.inputs(observation)).t().numpy()
        return q


class TorchMlp:
    """An MLP over flat features, with one head."""

    def __init__(self, encoder: FeatureEncoder, policy: PolicyConfig, num_outputs: int) -> None:
        self._encoder = encoder
        self._mlp = Mlp(
            encoder.num_features,
            policy.hidden,
            (num_outputs,),
            tanh=policy.activation == "tanh",
            generator=torch.Generator(),
        )

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Compute with these from now on. ValueError if they belong to another network."""
        own = {name.removeprefix(NETWORK): value for name, value in parameters.items()}
        self._mlp.load(own)

    def outputs(self, observation: Mapping[str, Array]) -> Float32Array:
        """Outputs ``[n, B]`` for leaves ``[B, ...]``."""
        features = torch.from_numpy(np.array(self._encoder.flat(observation)))
        outputs: Float32Array = self._mlp.forward(features).t().numpy()
        return outputs
