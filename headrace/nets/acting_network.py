"""What off-policy actors compute with: outputs ``[n, B]`` of one network, in numpy or in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.config.sections import PolicyConfig
from headrace.nets.features import FeatureEncoder
from headrace.nets.numpy_mlp import NumpyMlp
from headrace.types import Array

Float32Array = npt.NDArray[np.float32]

NETWORK = "network/"
"""Prefix of the acting network's parameters."""


class ActingNetwork(Protocol):
    """A network to act with."""

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Compute with these from now on. KeyError or ValueError if they belong to another network."""
        ...

    def outputs(self, observation: Mapping[str, Array]) -> Float32Array:
        """Outputs ``[n, B]`` for leaves ``[B, ...]``."""
        ...


class NumpyNetwork:
    """A small MLP: no torch in the process, several times faster at 1 to 64 lanes."""

    def __init__(
        self, encoder: FeatureEncoder, policy: PolicyConfig, heads: Sequence[int], *, dueling: bool = False
    ) -> None:
        self._encoder = encoder
        self._mlp = NumpyMlp(len(policy.hidden), len(heads), tanh=policy.activation == "tanh")
        self._combine = _dueling_matrix(heads[1]) if dueling else None

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Compute with these from now on. KeyError if they belong to another network."""
        self._mlp.load(parameters, NETWORK, self._combine)

    def outputs(self, observation: Mapping[str, Array]) -> Float32Array:
        """Outputs ``[n, B]`` for leaves ``[B, ...]``."""
        return self._mlp.forward(self._encoder.flat(observation))


def _dueling_matrix(num_actions: int) -> Float32Array:
    """``[A, 1 + A]``: from value and advantages to ``Q = V + advantage - mean advantage``."""
    advantage = np.eye(num_actions, dtype=np.float32) - np.float32(1.0 / num_actions)
    return np.concatenate([np.ones((num_actions, 1), np.float32), advantage], axis=1)
