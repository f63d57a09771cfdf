"""Acting on the values of actions: epsilon-greedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from headrace.config.algorithms import DqnConfig
from headrace.nets.acting_network import ActingNetwork, Float32Array
from headrace.nets.action_batch import ActionBatch
from headrace.nets.actions import ActionLayout
from headrace.nets.exploration import EPSILON, RANDOM, ladder_exponent
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


class EpsilonGreedyActor:
    """The action of greatest value, or with probability epsilon any one.

    ``value`` is that of the greedy action, ``action_value`` that of the one taken.
    """

    def __init__(
        self,
        network: ActingNetwork,
        algorithm: DqnConfig,
        spec: EnvironmentSpec,
        *,
        sampler_index: int,
        num_samplers: int,
    ) -> None:
        self._network, self._layout = network, ActionLayout(spec.action)
        self._exponent = ladder_exponent(sampler_index, num_samplers) if algorithm.epsilon_ladder else 1.0
        self._epsilon = 1.0

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Act with these from now on. KeyError or ValueError if they belong to another network."""
        self._network.load(parameters)
        random = bool(parameters[RANDOM])
        self._epsilon = 1.0 if random else float(parameters[EPSILON]) ** self._exponent

    def act(self, observation: Mapping[str, Array], rng: np.random.Generator) -> ActionBatch:
        """Choose for leaves ``[B, ...]``. Draws two numbers a row, whatever epsilon is."""
        q = self._network.outputs(observation)
        num_actions, rows = q.shape
        greedy = q.argmax(axis=0)
        explores = rng.random(rows) < self._epsilon
        index = np.where(explores, rng.integers(num_actions, size=rows), greedy)
        every = np.arange(rows)
        action = self._layout.unpack(index[None])
        any_one = self._epsilon / num_actions
        chance = np.where(index == greedy, 1.0 - self._epsilon + any_one, any_one)
        return ActionBatch(
            action, action, np.log(chance).astype(np.float32), q[greedy, every], q[index, every]
        )

    def value(self, observation: Mapping[str, Array]) -> Float32Array:
        """Value ``[B]`` of the greedy action."""
        best: Float32Array = self._network.outputs(observation).max(axis=0)
        return best

    def greedy(self, observation: Mapping[str, Array]) -> dict[str, Array]:
        """The action of greatest value for leaves ``[B, ...]``."""
        return self._layout.unpack(self._network.outputs(observation).argmax(axis=0)[None])
