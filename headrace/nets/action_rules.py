"""Which spaces each kind of off-policy algorithm can act in; everything else is refused in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.config.sections import PolicyConfig
from headrace.errors import ConfigurationError, UnsupportedSpaceError
from headrace.nets.actions import WIDEST_RANGE
from headrace.nets.features import FeatureEncoder, is_plain_mlp

if TYPE_CHECKING:
    from headrace.envs.spec import LeafSpec, SpaceSpec


def num_choices(space: SpaceSpec, algorithm: str) -> int:
    """Number of actions of a single discrete choice. UnsupportedSpaceError if it is anything else."""
    if len(space.leaves) == 1 and len(space.leaves[0].nvec) == 1:
        return int(space.leaves[0].nvec[0])
    raise UnsupportedSpaceError(
        f"algorithm.name: {algorithm} learns one value for each action and needs a single Discrete action, "
        f"not {_described(space)}; use ppo or a2c, or for continuous actions sac"
    )


def require_bounded(space: SpaceSpec, algorithm: str) -> None:
    """UnsupportedSpaceError unless every leaf is a box of floats with finite bounds."""
    for leaf in space.leaves:
        if leaf.kind != "box" or np.dtype(leaf.dtype).kind != "f":
            raise UnsupportedSpaceError(
                f"algorithm.name: {algorithm} needs continuous actions (boxes of floats), not "
                f"{_described(space)}; use dqn, ppo or a2c"
            )
        low, high = (bound.astype(np.float64) for bound in leaf.bounds())
        if not np.all((high > low) & (high - low < WIDEST_RANGE)):
            raise UnsupportedSpaceError(
                f"algorithm.name: {algorithm} squashes actions into their bounds, and action "
                f"{leaf.path or 'space'} has components without finite ones; use ppo or a2c, or wrap the "
                "environment"
            )


def _described(space: SpaceSpec) -> str:
    return " and ".join(_kind(leaf) for leaf in space.leaves)


def _kind(leaf: LeafSpec) -> str:
    return f"{leaf.kind} {leaf.path or 'action'}"


def require_flat(policy: PolicyConfig, encoder: FeatureEncoder, algorithm: str) -> None:
    """ConfigurationError unless the network is one of our own MLPs over flat features."""
    if not is_plain_mlp(policy, encoder):
        raise ConfigurationError(
            [
                f"policy.network: {algorithm} has an actor and critics over flat features, which "
                f"{policy.network!r} doesn't give here; use mlp"
            ]
        )
