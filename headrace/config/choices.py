"""Which half of the algorithms a configuration has chosen."""

from __future__ import annotations

from headrace.config.algorithms import OffPolicyConfig, OnPolicyConfig
from headrace.config.sections import Config


def is_off_policy(config: Config) -> bool:
    """Whether the algorithm learns from replay (DQN, DDPG, TD3, SAC) or from fragments as they come."""
    return isinstance(config.algorithm, OffPolicyConfig)


def on_policy(config: Config) -> OnPolicyConfig:
    """The section of an on-policy algorithm; TypeError if it is an off-policy one."""
    if not isinstance(config.algorithm, OnPolicyConfig):
        raise TypeError(f"{config.algorithm.name} learns from replay, not from fragments")
    return config.algorithm


def off_policy(config: Config) -> OffPolicyConfig:
    """The section of an off-policy algorithm; TypeError if it is an on-policy one."""
    if not isinstance(config.algorithm, OffPolicyConfig):
        raise TypeError(f"{config.algorithm.name} learns from fragments, not from replay")
    return config.algorithm
