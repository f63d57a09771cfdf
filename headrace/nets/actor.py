"""Acting: observations in, actions out, with a copy of the policy that a sampler or evaluator holds.

Two ways to compute the network, one way to draw from it: :class:`NumpyActor` for small MLPs (no torch in
the process, several times faster at 1 to 64 lanes), :class:`TorchActor` for everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from headrace.config.choices import is_off_policy, on_policy
from headrace.config.sections import Config
from headrace.errors import ConfigurationError
from headrace.nets.action_batch import ActionBatch
from headrace.nets.actions import ActionLayout
from headrace.nets.features import FeatureEncoder, is_plain_mlp
from headrace.nets.replay_actors import make_replay_actor
from headrace.rl.normalizer import VALUE_NORMALIZER, RunningMoments
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

Float32Array = npt.NDArray[np.float32]

_NUMPY_MAX_UNITS = 512
"""Widest hidden layer for which numpy beats torch, whose overhead is then lost in the product."""


class Actor(Protocol):
    """A policy to act with. Not thread-safe: one thread loads and acts."""

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Act with these from now on. ValueError or KeyError if they belong to another network."""
        ...

    def act(self, observation: Mapping[str, Array], rng: np.random.Generator) -> ActionBatch:
        """Draw actions for leaves ``[B, ...]``."""
        ...

    def value(self, observation: Mapping[str, Array]) -> Float32Array:
        """Values ``[B]`` in units of reward."""
        ...

    def greedy(self, observation: Mapping[str, Array]) -> dict[str, Array]:
        """The mode of the policy for leaves ``[B, ...]``, as the environment may see it."""
        ...


def make_actor(config: Config, spec: EnvironmentSpec, *, sampler_index: int = 0) -> Actor:
    """The actor of the algorithm, computed as ``sampler.actor`` asks for.

    ``sampler_index`` is this sampler's place on the ladder of epsilons, if there is one. ConfigurationError
    if the policy can't be computed so, or can't act in these spaces.
    """
    in_numpy = acts_in_numpy(config, spec)
    if not in_numpy and find_spec("torch") is None:
        raise ConfigurationError(
            [
                "policy: samplers compute this one by torch, which isn't installed here; in containers it is "
                "in the image that `make images ARGS=--sampler-torch` builds."
            ]
        )
    if is_off_policy(config):
        return make_replay_actor(config, spec, in_numpy=in_numpy, sampler_index=sampler_index)
    return NumpyActor(config, spec) if in_numpy else TorchActor(config, spec)


def acts_in_numpy(config: Config, spec: EnvironmentSpec) -> bool:
    """Whether acting needs no torch. ConfigurationError if ``sampler.actor`` asks for what can't be."""
    plain = is_plain_mlp(config.policy, FeatureEncoder(spec.observation, config.policy))
    if config.sampler.actor == "numpy" and not plain:
        network = config.policy.network
        raise ConfigurationError(
            [f"sampler.actor: numpy computes MLPs only, not policy.network {network!r} here; use auto"]
        )
    small = max(config.policy.hidden, default=0) <= _NUMPY_MAX_UNITS
    return config.sampler.actor == "numpy" or (config.sampler.actor == "auto" and plain and small)


class _ActorBase:
    """What both actors share: drawing, units of value, units of action."""

    def __init__(self, config: Config, spec: EnvironmentSpec) -> None:
        self._layout = ActionLayout(spec.action)
        self._log_std = np.zeros(self._layout.num_log_std, np.float32)
        algorithm = on_policy(config)
        self._normalize_value = algorithm.normalize_value
        self._reward_scale = algorithm.reward_scale
        self._value_scale, self._value_shift = np.float32(1.0 / self._reward_scale), np.float32(0.0)

    def _forward(self, observation: Mapping[str, Array]) -> tuple[Float32Array, Float32Array]:
        """Outputs ``[num_outputs, B]`` and values ``[B]`` in the network's own units."""
        raise NotImplementedError

    def _load_heads(self, parameters: Mapping[str, Array]) -> None:
        if self._layout.num_log_std:
            self._log_std = np.array(parameters["network/log_std"], np.float32)
        if self._normalize_value:
            moments = RunningMoments.from_columns(VALUE_NORMALIZER, parameters)
            self._value_scale = np.float32(moments.std / self._reward_scale)
            self._value_shift = np.float32(moments.mean / self._reward_scale)

    def act(self, observation: Mapping[str, Array], rng: np.random.Generator) -> ActionBatch:
        """Draw actions for leaves ``[B, ...]``."""
        outputs, values = self._forward(observation)
        action, log_prob = self._layout.sample(outputs, self._log_std, rng)
        return ActionBatch(action, self._layout.clip(action), log_prob, self._in_reward_units(values))

    def value(self, observation: Mapping[str, Array]) -> Float32Array:
        """Values ``[B]`` in units of reward."""
        return self._in_reward_units(self._forward(observation)[1])

    def greedy(self, observation: Mapping[str, Array]) -> dict[str, Array]:
        """The mode of the policy for leaves ``[B, ...]``, as the environment may see it."""
        return self._layout.clip(self._layout.mode(self._forward(observation)[0]))

    def _in_reward_units(self, values: Float32Array) -> Float32Array:
        scaled = values * self._value_scale
        scaled += self._value_shift
        return scaled


class NumpyActor(_ActorBase):
    """A two-tower MLP in plain numpy, with the parameters of :class:`headrace.nets.twin_mlp.TwinMlp`.

    Everything is feature-major, ``[units, B]``, the policy's rows above the value's, in buffers that are
    used again. ``H`` units a tower and layer.
    """

    def __init__(self, config: Config, spec: EnvironmentSpec) -> None:
        super().__init__(config, spec)
        self._encoder = FeatureEncoder(spec.observation, config.policy)
        self._depth = len(config.policy.hidden)
        self._tanh = config.policy.activation == "tanh"
        self._first: Float32Array  # [2 H, num_features + 1]; the bias is the weight of a constant 1
        self._deeper: list[_Layer] = []
        self._heads: Float32Array  # [num_outputs + 1, 2 H], zero where a head doesn't see a tower
        self._heads_bias: Float32Array  # [num_outputs + 1, 1]
        self._buffers: dict[int, list[Float32Array]] = {}

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Act with these from now on. KeyError if they belong to another network."""

        def own(name: str) -> Float32Array:
            return np.array(parameters[f"network/{name}"], np.float32)

        towers = [(own(f"weights.{i}"), own(f"biases.{i}")) for i in range(self._depth)]
        policy, value = own("policy_weight"), own("value_weight")[None, :]
        self._heads_bias = np.concatenate([own("policy_bias"), own("value_bias")])[:, None]
        if towers:
            weight, bias = towers[0]
            stacked = np.concatenate([weight, bias], axis=1)  # [2, num_features + 1, H]
            self._first = np.ascontiguousarray(stacked.transpose(0, 2, 1).reshape(-1, stacked.shape[1]))
            self._heads = np.block([[policy, np.zeros_like(policy)], [np.zeros_like(value), value]])
        else:
            self._heads = np.concatenate([policy, value])
        self._deeper = [_Layer.of(weight, bias) for weight, bias in towers[1:]]
        self._encoder.load(parameters)
        self._load_heads(parameters)

    def _buffers_for(self, rows: int) -> list[Float32Array]:
        """The input with its constant 1, and one ``[2 H, rows]`` a hidden layer; for the sizes in use."""
        buffers = self._buffers.get(rows)
        if buffers is None:
            if len(self._buffers) >= 8:  # sizes vary with the number of ended episodes: keep few
                self._buffers.pop(next(iter(self._buffers)))
            heights = [len(self._first), *(len(layer.bias) for layer in self._deeper)] if self._depth else []
            buffers = [np.empty((height, rows), np.float32) for height in heights]
            buffers.insert(0, np.ones((self._encoder.num_features + 1, rows), np.float32))
            self._buffers[rows] = buffers
        return buffers

    def _forward(self, observation: Mapping[str, Array]) -> tuple[Float32Array, Float32Array]:
        features = self._encoder.flat(observation)
        inputs, *buffers = self._buffers_for(len(features))
        inputs[:-1] = features.T
        hidden = inputs[:-1]
        if buffers:
            hidden = self._activate(np.dot(self._first, inputs, out=buffers[0]))
            for layer, buffer in zip(self._deeper, buffers[1:], strict=True):
                hidden = self._activate(layer.apply(hidden, buffer))
        out = np.dot(self._heads, hidden)
        out += self._heads_bias
        return out[:-1], out[-1]

    def _activate(self, hidden: Float32Array) -> Float32Array:
        return np.tanh(hidden, out=hidden) if self._tanh else np.maximum(hidden, 0, out=hidden)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A hidden layer after the first, of both towers."""

    policy: Float32Array  # [H, H of the layer before]
    value: Float32Array
    bias: Float32Array  # [2 H, 1]

    @classmethod
    def of(cls, weight: Float32Array, bias: Float32Array) -> _Layer:
        """From TwinMlp's ``[2, inputs, H]`` and ``[2, 1, H]``."""
        policy, value = (np.ascontiguousarray(tower.T) for tower in weight)
        return cls(policy, value, bias.reshape(-1, 1))

    def apply(self, hidden: Float32Array, out: Float32Array) -> Float32Array:
        """Before the activation: ``[2 H, B]`` into ``out``."""
        before, units = len(hidden) // 2, len(self.policy)
        np.dot(self.policy, hidden[:before], out=out[:units])
        np.dot(self.value, hidden[before:], out=out[units:])
        return np.add(out, self.bias, out=out)


class TorchActor(_ActorBase):
    """Any policy, computed by torch without gradients."""

    def __init__(self, config: Config, spec: EnvironmentSpec) -> None:
        from headrace.nets.policy import TorchPolicy

        super().__init__(config, spec)
        self._policy = TorchPolicy(spec, config.policy, seed=0)

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Act with these from now on. ValueError if they belong to another network."""
        self._policy.load(parameters)
        self._load_heads(parameters)

    def _forward(self, observation: Mapping[str, Array]) -> tuple[Float32Array, Float32Array]:
        import torch

        with torch.inference_mode():
            outputs, values = self._policy.forward(self._policy.inputs(observation))
            return outputs.numpy(), values.numpy()
