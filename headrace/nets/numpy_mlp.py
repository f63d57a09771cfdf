"""The forward pass of :class:`headrace.nets.mlp.Mlp` in plain numpy, for acting without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headrace.types import Array

Float32Array = npt.NDArray[np.float32]


class NumpyMlp:
    """One network with any number of heads. Feature-major: ``[units, B]``."""

    def __init__(self, num_hidden: int, num_heads: int, *, tanh: bool) -> None:
        self._names = [f"hidden.{index}" for index in range(num_hidden)]
        self._heads = [f"heads.{index}" for index in range(num_heads)]
        self._tanh = tanh
        self._layers: list[tuple[Float32Array, Float32Array]] = []

    def load(self, parameters: Mapping[str, Array], prefix: str, combine: Float32Array | None = None) -> None:
        """Compute with these from now on; KeyError if one is absent.

        ``combine`` ``[n, outputs]`` multiplies the outputs of all heads side by side.
        """

        def layer(name: str) -> tuple[Float32Array, Float32Array]:
            weight, bias = (np.asarray(parameters[f"{prefix}{name}.{kind}"]) for kind in ("weight", "bias"))
            return np.ascontiguousarray(weight.T, np.float32), np.array(bias, np.float32)[:, None]

        heads = [layer(name) for name in self._heads]
        weights = [weight for weight, _ in heads]
        weight = _side_by_side(weights) if self._names else np.concatenate(weights)
        bias = np.concatenate([bias for _, bias in heads])
        if combine is not None:
            weight, bias = combine @ weight, combine @ bias
        self._layers = [*(layer(name) for name in self._names), (weight, bias)]

    def forward(self, features: Float32Array) -> Float32Array:
        """Outputs ``[n, B]`` of rows ``[B, features]``."""
        hidden = features.T
        for weight, bias in self._layers[:-1]:
            hidden = weight @ hidden
            hidden += bias
            hidden = np.tanh(hidden, out=hidden) if self._tanh else np.maximum(hidden, 0, out=hidden)
        weight, bias = self._layers[-1]
        outputs: Float32Array = weight @ hidden
        outputs += bias
        return outputs


def _side_by_side(weights: Sequence[Float32Array]) -> Float32Array:
    """Weights of heads ``[n, H]`` as one, each reading its own H units: block-diagonal."""
    rows, columns = sum(len(weight) for weight in weights), sum(weight.shape[1] for weight in weights)
    joint = np.zeros((rows, columns), np.float32)
    row = column = 0
    for weight in weights:
        joint[row : row + len(weight), column : column + weight.shape[1]] = weight
        row, column = row + len(weight), column + weight.shape[1]
    return joint
