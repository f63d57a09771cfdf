"""Synchronous advantage actor-critic: one gradient step per batch. Reads top to bottom.

Mnih et al., "Asynchronous Methods for Deep Reinforcement Learning" (2016), in its synchronous form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from headrace.config.sections import A2cConfig, Config
from headrace.rl.losses import a2c_policy_loss, approximate_kl, explained_variance, value_loss
from headrace.rl.on_policy import OnPolicyState
from headrace.rl.optimizers import Adam, Optimizer, RmsProp
from headrace.types import Array, Batch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


class A2c:
    """A2C on one process. Deterministic: same seed and same batches give the same bits."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, A2cConfig):
            raise TypeError(f"A2c needs an A2cConfig, not {type(config.algorithm).__name__}")
        self._config = config.algorithm
        self._state = OnPolicyState(config, spec, device=device)
        policy, epsilon = self._state.policy, self._config.optimizer_epsilon
        self._optimizer: Optimizer
        if self._config.optimizer == "rmsprop":
            decay = self._config.rmsprop_decay
            self._optimizer = RmsProp(policy.values, policy.gradients, epsilon=epsilon, decay=decay)
        else:
            self._optimizer = Adam(policy.values, policy.gradients, epsilon=epsilon)

    def update(self, batch: Batch, *, progress: float) -> dict[str, float]:
        """Learn from one batch."""
        config, state, policy = self._config, self._state, self._state.policy
        learning_rate = state.learning_rate(progress)
        experience = state.experience(batch)
        advantage = experience.advantage
        if config.normalize_advantage and experience.size > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        outputs, value = policy.forward(experience.inputs)
        log_prob, entropies = policy.evaluate(outputs, experience.action)
        policy_loss = a2c_policy_loss(log_prob, advantage)
        critic_loss = value_loss(value, experience.target)
        entropy = entropies.mean()
        loss = policy_loss + config.value_coefficient * critic_loss - config.entropy_coefficient * entropy

        policy.gradients.zero_()
        loss.backward()
        norm = state.clip_gradients()
        with torch.no_grad():
            kl = approximate_kl(log_prob - experience.log_prob)
            metrics = torch.stack([policy_loss, critic_loss, entropy, kl, norm])
        finite = bool(torch.isfinite(metrics).all())
        if finite:
            self._optimizer.step(learning_rate)
        state.merge_normalizers(batch)
        names = ("policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm")
        means = metrics.tolist() if finite else [0.0] * len(names)
        return {
            **dict(zip(names, means, strict=True)),
            "clip_fraction": 0.0,
            "explained_variance": explained_variance(experience.value, experience.target),
            "learning_rate": learning_rate,
            "gradient_steps": float(finite),
            "non_finite": float(not finite),
        }

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act with this policy."""
        return self._state.acting_parameters()

    def training_state(self) -> dict[str, Array]:
        """What else is needed to go on exactly as if never interrupted."""
        return self._state.training_state(self._optimizer)

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from what :meth:`acting_parameters` and :meth:`training_state` gave."""
        self._state.load(acting, training, self._optimizer)
