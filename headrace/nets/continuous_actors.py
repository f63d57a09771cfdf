"""Acting in boxes with finite bounds, off-policy: a squashed network, and noise to explore with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from headrace.nets.acting_network import ActingNetwork, Float32Array
from headrace.nets.action_batch import ActionBatch
from headrace.nets.actions import ActionLayout
from headrace.nets.exploration import RANDOM
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Where a state-dependent log standard deviation is held, in units before the squashing."""

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class _BoundedActor:
    """Positions in [-1, 1], in units of half each component's range. States are given no value here: 0."""

    def __init__(self, network: ActingNetwork, spec: EnvironmentSpec) -> None:
        self._network, self._layout = network, ActionLayout(spec.action)
        self._random = True

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Act with these from now on. KeyError or ValueError if they belong to another network."""
        self._network.load(parameters)
        self._random = bool(parameters[RANDOM])

    def act(self, observation: Mapping[str, Array], rng: np.random.Generator) -> ActionBatch:
        """Draw actions for leaves ``[B, ...]``."""
        rows = next(iter(observation.values())).shape[0]
        if self._random:
            shape = (self._layout.num_slots, rows)
            positions = rng.uniform(-1.0, 1.0, shape).astype(np.float32)
            log_prob = np.full(rows, -self._layout.num_slots * math.log(2.0), np.float32)
        else:
            positions, log_prob = self._explore(self._network.outputs(observation), rng)
        action = self._layout.clip(self._layout.unpack(positions))
        return ActionBatch(action, action, log_prob, np.zeros(rows, np.float32))

    def _explore(self, outputs: Float32Array, rng: np.random.Generator) -> tuple[Float32Array, Float32Array]:
        """Positions ``[slots, B]`` and their log probability ``[B]``."""
        raise NotImplementedError

    def _mode(self, outputs: Float32Array) -> Float32Array:
        """Positions ``[slots, B]`` without noise."""
        positions: Float32Array = np.tanh(outputs[: self._layout.num_slots])
        return positions

    def value(self, observation: Mapping[str, Array]) -> Float32Array:
        """Zeros ``[B]``: critics stay with the learner."""
        return np.zeros(next(iter(observation.values())).shape[0], np.float32)

    def greedy(self, observation: Mapping[str, Array]) -> dict[str, Array]:
        """The action without noise for leaves ``[B, ...]``."""
        return self._layout.clip(self._layout.unpack(self._mode(self._network.outputs(observation))))


class NoisyActor(_BoundedActor):
    """A deterministic policy with Gaussian noise, cut off at the bounds.

    Its actions have no density (some lie on the bounds with positive probability): log_prob is 0.
    """

    def __init__(self, network: ActingNetwork, spec: EnvironmentSpec, *, noise: float) -> None:
        """``noise`` is the standard deviation in units of half the range."""
        super().__init__(network, spec)
        self._noise = np.float32(noise)

    def _explore(self, outputs: Float32Array, rng: np.random.Generator) -> tuple[Float32Array, Float32Array]:
        noise = rng.standard_normal(outputs.shape, np.float32) * self._noise
        noise += self._mode(outputs)
        return np.clip(noise, -1.0, 1.0, out=noise), np.zeros(outputs.shape[1], np.float32)


class SquashedGaussianActor(_BoundedActor):
    """A Gaussian whose mean and log standard deviation are the network's outputs, through tanh.

    Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), appendix C.
    """

    def _explore(self, outputs: Float32Array, rng: np.random.Generator) -> tuple[Float32Array, Float32Array]:
        mean, log_std = np.split(outputs, 2)
        log_std = np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)
        noise = rng.standard_normal(mean.shape, np.float32)
        unsquashed = mean + noise * np.exp(log_std)
        # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), without its cancellation
        squash = 2.0 * (math.log(2.0) - unsquashed - np.logaddexp(np.float32(0), -2.0 * unsquashed))
        log_prob = (-0.5 * np.square(noise) - log_std - _HALF_LOG_TWO_PI - squash).sum(axis=0)
        return np.tanh(unsquashed), log_prob.astype(np.float32)
