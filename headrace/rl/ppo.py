"""Proximal policy optimization, from a batch of fragments to new parameters. Reads top to bottom.

Schulman et al., "Proximal Policy Optimization Algorithms" (2017); details after Huang et al., "The 37
Implementation Details of Proximal Policy Optimization" (2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.config.algorithms import ClippedConfig
from headrace.config.sections import Config
from headrace.rl.losses import (
    approximate_kl,
    clip_fraction,
    explained_variance,
    normalize,
    ppo_policy_loss,
    value_loss,
)
from headrace.rl.on_policy import Experience, OnPolicyState
from headrace.rl.shared import Shared
from headrace.types import Array, Batch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


class Ppo:
    """PPO on one process. Deterministic: same seed and same batches give the same bits."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, ClippedConfig):
            raise TypeError(f"Ppo needs a ClippedConfig, not {type(config.algorithm).__name__}")
        self._config = config.algorithm
        self._state = OnPolicyState(config, spec, device=device)

    def update(self, batch: Batch, *, progress: float) -> dict[str, float]:
        """Learn from one batch; returns the means over its gradient steps."""
        config, state = self._config, self._state
        learning_rate = state.learning_rate(progress)
        experience = self._experience(batch)
        steps: list[list[float]] = []
        epochs = 0
        for _ in range(config.epochs):
            epochs += 1
            first = len(steps)
            for index in state.minibatches(experience.size, config.minibatch_size):
                losses = self._gradients(experience.select(index)) if len(index) else []
                steps.append(state.step(learning_rate, losses, rows=len(index)))
            if config.target_kl is not None and state.any_of_group(
                self._kl(steps[first:]) > config.target_kl
            ):
                break
        state.merge_normalizers(batch)
        return {
            **state.means(_METRICS, steps),
            "explained_variance": explained_variance(experience.value, experience.target),
            "learning_rate": learning_rate,
            "epochs": float(epochs),
            "non_finite": float(state.skipped(steps)),
        }

    def _kl(self, steps: list[list[float]]) -> float:
        """Mean estimate of how far the policy has moved, over the gradient steps that were taken."""
        return self._state.means(_METRICS, steps)["approx_kl"]

    def _experience(self, batch: Batch) -> Experience:
        return self._state.experience(batch)

    def _advantage(self, minibatch: Experience) -> Tensor:
        """What the policy's gradient is made of ``[M]``."""
        return normalize(minibatch.advantage) if self._config.normalize_advantage else minibatch.advantage

    @torch.no_grad()
    def _gradients(self, minibatch: Experience) -> list[float]:
        """Leave the gradients of one minibatch's loss in the policy; returns ``_METRICS`` up to the norm.

        The loss is policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy.
        """
        config, policy = self._config, self._state.policy
        advantage = self._advantage(minibatch)
        now = policy.evaluate(minibatch.inputs, minibatch.action)
        log_ratio = now.log_prob - minibatch.log_prob
        policy_losses, log_prob_gradient = ppo_policy_loss(log_ratio, advantage, config.clip)
        value_losses, value_gradient = value_loss(
            now.value, minibatch.target, minibatch.value, config.value_clip
        )
        policy.backward(
            now,
            log_prob_gradient=log_prob_gradient,
            entropy_gradient=-config.entropy_coefficient / minibatch.size,
            value_gradient=value_gradient.mul_(config.value_coefficient),
        )
        rows = [
            policy_losses,
            value_losses,
            now.entropy,
            approximate_kl(log_ratio),
            clip_fraction(log_ratio, config.clip),
        ]
        return [*torch.stack(rows).mean(1).tolist()]

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
