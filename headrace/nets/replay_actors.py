"""The actor of each off-policy algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.algorithms import ActorCriticReplayConfig, DdpgConfig, DqnConfig, SacConfig, Td3Config
from headrace.config.sections import Config
from headrace.nets.acting_network import ActingNetwork, NumpyNetwork
from headrace.nets.action_rules import num_choices, require_bounded, require_flat
from headrace.nets.actions import ActionLayout
from headrace.nets.continuous_actors import NoisyActor, SquashedGaussianActor
from headrace.nets.features import FeatureEncoder
from headrace.nets.value_actor import EpsilonGreedyActor

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


def make_replay_actor(
    config: Config, spec: EnvironmentSpec, *, in_numpy: bool, sampler_index: int
) -> EpsilonGreedyActor | NoisyActor | SquashedGaussianActor:
    """The actor of ``algorithm.name``. ConfigurationError if it can't act in these spaces."""
    algorithm = config.algorithm
    if isinstance(algorithm, DqnConfig):
        return EpsilonGreedyActor(
            _q_network(config, spec, algorithm, in_numpy=in_numpy),
            algorithm,
            spec,
            sampler_index=sampler_index,
            num_samplers=config.sampler.count,
        )
    if not isinstance(algorithm, DdpgConfig | Td3Config | SacConfig):
        raise TypeError(f"{algorithm.name} acts on-policy")
    network = _actor_network(config, spec, algorithm, in_numpy=in_numpy)
    if isinstance(algorithm, SacConfig):
        return SquashedGaussianActor(network, spec)
    return NoisyActor(network, spec, noise=algorithm.exploration_noise)


def _q_network(
    config: Config, spec: EnvironmentSpec, algorithm: DqnConfig, *, in_numpy: bool
) -> ActingNetwork:
    actions = num_choices(spec.action, algorithm.name)
    if in_numpy:
        heads = (1, actions) if algorithm.dueling else (actions,)
        encoder = FeatureEncoder(spec.observation, config.policy)
        return NumpyNetwork(encoder, config.policy, heads, dueling=algorithm.dueling)
    from headrace.nets.torch_acting import TorchQ

    return TorchQ(config, spec, dueling=algorithm.dueling)


def _actor_network(
    config: Config, spec: EnvironmentSpec, algorithm: ActorCriticReplayConfig, *, in_numpy: bool
) -> ActingNetwork:
    require_bounded(spec.action, algorithm.name)
    encoder = FeatureEncoder(spec.observation, config.policy)
    require_flat(config.policy, encoder, algorithm.name)
    outputs = ActionLayout(spec.action).num_slots * (2 if isinstance(algorithm, SacConfig) else 1)
    if in_numpy:
        return NumpyNetwork(encoder, config.policy, (outputs,))
    from headrace.nets.torch_acting import TorchMlp

    return TorchMlp(encoder, config.policy, outputs)
