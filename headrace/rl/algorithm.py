"""What a learner knows of an algorithm, and how it gets one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from headrace.config.sections import Config, PpoConfig
from headrace.errors import ConfigurationError
from headrace.rl.a2c import A2c
from headrace.rl.ppo import Ppo
from headrace.types import Array, Batch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


class Algorithm(Protocol):
    """Turns batches into parameters. Knows no networks of machines, no clocks. Not thread-safe.

    Deterministic: the same seed and the same batches give the same bits, also across a save and load.
    """

    def update(self, batch: Batch, *, progress: float) -> dict[str, float]:
        """Learn from one batch, then take its normalizer deltas in; returns metrics by name.

        ``progress`` in [0, 1] is how much of the run is behind us, for schedules. A gradient step with a
        non-finite loss or gradient is skipped and counted in ``non_finite``.
        """
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


def make_algorithm(config: Config, spec: EnvironmentSpec) -> Algorithm:
    """The configured algorithm, seeded from ``run.seed``, on ``learner.device``.

    ConfigurationError if the spaces can't be learned in, or the device is not there.
    """
    device = config.learner.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device == "cuda" and not torch.cuda.is_available():
        raise ConfigurationError(["learner.device: cuda is not available here; use cpu or auto"])
    if isinstance(config.algorithm, PpoConfig):
        return Ppo(config, spec, device=device)
    return A2c(config, spec, device=device)
