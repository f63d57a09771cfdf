"""Synchronous advantage actor-critic: one gradient step per batch. Reads top to bottom.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning" (2016), in its synchronous form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from headrace.config.algorithms import A2cConfig, A3cConfig
from headrace.config.sections import Config
from headrace.rl.losses import a2c_policy_loss, approximate_kl, explained_variance, normalize, value_loss
from headrace.rl.on_policy import Experience, OnPolicyState
from headrace.rl.shared import Shared
from headrace.types import Array, Batch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm")


class A2c:
    """A2C on one process. Deterministic: same seed and same batches give the same bits."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, A2cConfig | A3cConfig):
            raise TypeError(f"A2c needs an A2cConfig or A3cConfig, not {type(config.algorithm).__name__}")
        self._config = config.algorithm
        self._state = OnPolicyState(config, spec, device=device)

    def update(self, batch: Batch, *, progress: float) -> dict[str, float]:
        """Learn from one batch, in one step."""
        state = self._state
        learning_rate = state.learning_rate(progress)
        experience = state.experience(batch)
        losses = self._gradients(experience) if experience.size > 0 else []
        steps = [state.step(learning_rate, losses, rows=experience.size)]
        state.merge_normalizers(batch)
        return {
            **state.means(_METRICS, steps),
            "clip_fraction": 0.0,
            "explained_variance": explained_variance(experience.value, experience.target),
            "learning_rate": learning_rate,
            "epochs": 1.0,
            "non_finite": float(state.skipped(steps)),
        }

    @torch.no_grad()
    def _gradients(self, experience: Experience) -> list[float]:
        """Leave the gradients of the loss in the policy; returns ``_METRICS`` up to the norm.

        The loss is policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy.
        """
        config, policy = self._config, self._state.policy
        advantage = experience.advantage
        if config.normalize_advantage:
            advantage = normalize(advantage)

        now = policy.evaluate(experience.inputs, experience.action)
        policy_losses, log_prob_gradient = a2c_policy_loss(now.log_prob, advantage)
        value_losses, value_gradient = value_loss(now.value, experience.target)
        policy.backward(
            now,
            log_prob_gradient=log_prob_gradient,
            entropy_gradient=-config.entropy_coefficient / experience.size,
            value_gradient=value_gradient.mul_(config.value_coefficient),
        )
        kl = approximate_kl(now.log_prob - experience.log_prob)
        return [*torch.stack([policy_losses, value_losses, now.entropy, kl]).mean(1).tolist()]

    @property
    def shared(self) -> Shared:
        """What all learners of a run hold in common."""
        return self._state.shared

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act with this policy."""
        return self._state.acting_parameters()

    def training_state(self) -> dict[str, Array]:
        """What else is needed to go on exactly as if never interrupted."""
        return self._state.training_state()

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from what :meth:`acting_parameters` and :meth:`training_state` gave."""
        self._state.load(acting, training)
