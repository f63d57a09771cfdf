"""What a learner knows of an algorithm, and how it gets one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from headrace.config.algorithms import (
    A3cConfig,
    AppoConfig,
    DdpgConfig,
    DqnConfig,
    ImpalaConfig,
    PpoConfig,
    Td3Config,
)
from headrace.config.sections import Config
from headrace.errors import ConfigurationError
from headrace.rl.a2c import A2c
from headrace.rl.a3c import A3c
from headrace.rl.appo import Appo
from headrace.rl.ddpg import Ddpg
from headrace.rl.dqn import Dqn
from headrace.rl.impala import Impala
from headrace.rl.off_policy import Learned
from headrace.rl.ppo import Ppo
from headrace.rl.sac import Sac
from headrace.rl.shared import Shared
from headrace.rl.td3 import Td3
from headrace.types import Array, Batch, ReplayBatch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


__all__ = [
    "Algorithm",
    "Learned",
    "ReplayAlgorithm",
    "make_algorithm",
    "make_replay_algorithm",
    "resolve_device",
]


class Algorithm(Protocol):
    """On-policy: turns batches into parameters. Knows no networks of machines, no clocks. Not thread-safe.

    Deterministic: the same seed and the same batches give the same bits, also across a save and load.
    """

    def update(self, batch: Batch, *, progress: float) -> dict[str, float]:
        """Learn from one batch, then take its normalizer deltas in; returns metrics by name.

        ``progress`` in [0, 1] is how much of the run is behind us, for schedules. A gradient step with a
        non-finite loss or gradient is skipped and counted in ``non_finite``.
        """
        ...

    @property
    def shared(self) -> Shared:
        """What all learners of a run hold in common."""
        ...

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act: network and normalizers. Copies."""
        ...

    def training_state(self) -> dict[str, Array]:
        """What else the next update depends on. Copies."""
        ...

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from saved state; ValueError or KeyError if it belongs to another network or algorithm."""
        ...


class ReplayAlgorithm(Protocol):
    """Off-policy: turns items drawn from replay into parameters. Not thread-safe.

    Deterministic: the same seed and the same batches give the same bits, also across a save and load.
    """

    def learn(self, batch: ReplayBatch, *, env_steps: int, progress: float) -> Learned:
        """Take ``batch.num_gradient_steps`` gradient steps, each on the next of as many equal minibatches.

        ``env_steps`` is how many environment steps the run has made, for exploration; ``progress`` in
        [0, 1] how much of it is behind us, for schedules. A gradient step with a non-finite loss or
        gradient is skipped and counted in ``non_finite``. KeyError or ValueError if the batch is not whole.
        """
        ...

    @property
    def shared(self) -> Shared:
        """What all learners of a run hold in common."""
        ...

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act: the acting network and how far exploration is. Copies."""
        ...

    def training_state(self) -> dict[str, Array]:
        """What else the next update depends on: critics, targets, optimizers, random state. Copies."""
        ...

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from saved state; ValueError or KeyError if it belongs to another network or algorithm.

        Without ``training`` only what acts is taken in, and what else there is stays as it is.
        """
        ...


def make_algorithm(config: Config, spec: EnvironmentSpec) -> Algorithm:
    """The configured on-policy algorithm, seeded from ``run.seed``, on ``learner.device``.

    ConfigurationError if the spaces can't be learned in, or the device is not there; TypeError if the
    algorithm is an off-policy one.
    """
    algorithm, device = config.algorithm, resolve_device(config)
    if isinstance(algorithm, PpoConfig):
        return Ppo(config, spec, device=device)
    if isinstance(algorithm, AppoConfig):
        return Appo(config, spec, device=device)
    if isinstance(algorithm, ImpalaConfig):
        return Impala(config, spec, device=device)
    if isinstance(algorithm, A3cConfig):
        return A3c(config, spec, device=device)
    return A2c(config, spec, device=device)


def make_replay_algorithm(config: Config, spec: EnvironmentSpec) -> ReplayAlgorithm:
    """The configured off-policy algorithm, seeded from ``run.seed``, on ``learner.device``.

    ConfigurationError if the spaces can't be learned in, or the device is not there; TypeError if the
    algorithm is an on-policy one.
    """
    algorithm, device = config.algorithm, resolve_device(config)
    if isinstance(algorithm, DqnConfig):
        return Dqn(config, spec, device=device)
    if isinstance(algorithm, DdpgConfig):
        return Ddpg(config, spec, device=device)
    if isinstance(algorithm, Td3Config):
        return Td3(config, spec, device=device)
    return Sac(config, spec, device=device)


def resolve_device(config: Config) -> str:
    """The device that ``learner.device`` asks for; ConfigurationError if it is not there."""
    if config.learner.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.learner.device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(["learner.device: cuda is not available here; use cpu or auto"])
    return config.learner.device
