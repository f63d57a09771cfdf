"""Proximal policy optimization, from a batch of fragments to new parameters. Reads top to bottom.

Schulman et al., "Proximal Policy Optimization Algorithms" (2017); details after Huang et al., "The 37
Implementation Details of Proximal Policy Optimization" (2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.config.sections import Config, PpoConfig
from headrace.rl.losses import approximate_kl, explained_variance, ppo_policy_loss, value_loss
from headrace.rl.on_policy import Experience, OnPolicyState
from headrace.rl.optimizers import Adam
from headrace.types import Array, Batch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


class Ppo:
    """PPO on one process. Deterministic: same seed and same batches give the same bits."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, PpoConfig):
            raise TypeError(f"Ppo needs a PpoConfig, not {type(config.algorithm).__name__}")
        self._config = config.algorithm
        self._state = OnPolicyState(config, spec, device=device)
        policy = self._state.policy
        self._optimizer = Adam(policy.values, policy.gradients, epsilon=self._config.adam_epsilon)

    def update(self, batch: Batch, *, progress: float) -> dict[str, float]:
        """Learn from one batch; returns the means over its gradient steps."""
        config, state = self._config, self._state
        learning_rate = state.learning_rate(progress)
        experience = state.experience(batch)
        steps: list[Tensor] = []
        non_finite = 0
        for _ in range(config.epochs):
            first_of_epoch = len(steps)
            for index in state.minibatches(experience.size, config.minibatch_size):
                metrics = self._gradients(experience.select(index))
                if not torch.isfinite(metrics).all():
                    non_finite += 1
                    continue
                self._optimizer.step(learning_rate)
                steps.append(metrics)
            if config.target_kl is not None and len(steps) > first_of_epoch:
                if float(torch.stack(steps[first_of_epoch:])[:, 3].mean()) > config.target_kl:
                    break
        state.merge_normalizers(batch)
        means = torch.stack(steps).mean(0).tolist() if steps else [0.0] * len(_METRICS)
        return {
            **dict(zip(_METRICS, means, strict=True)),
            "explained_variance": explained_variance(experience.value, experience.target),
            "learning_rate": learning_rate,
            "gradient_steps": float(len(steps)),
            "non_finite": float(non_finite),
        }

    def _gradients(self, minibatch: Experience) -> Tensor:
        """Leave the clipped gradients of one minibatch in the policy; returns ``_METRICS`` as a vector."""
        config, policy = self._config, self._state.policy
        advantage = minibatch.advantage
        if config.normalize_advantage and minibatch.size > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        outputs, value = policy.forward(minibatch.inputs)
        log_prob, entropies = policy.evaluate(outputs, minibatch.action)
        log_ratio = log_prob - minibatch.log_prob
        policy_loss = ppo_policy_loss(log_ratio, advantage, config.clip)
        critic_loss = value_loss(value, minibatch.target, minibatch.value, config.value_clip)
        entropy = entropies.mean()
        loss = policy_loss + config.value_coefficient * critic_loss - config.entropy_coefficient * entropy

        policy.gradients.zero_()
        loss.backward()
        norm = self._state.clip_gradients()
        with torch.no_grad():
            clipped = ((log_ratio.exp() - 1.0).abs() > config.clip).float().mean()
            return torch.stack([policy_loss, critic_loss, entropy, approximate_kl(log_ratio), clipped, norm])

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act with this policy."""
        return self._state.acting_parameters()

    def training_state(self) -> dict[str, Array]:
        """What else is needed to go on exactly as if never interrupted."""
        return self._state.training_state(self._optimizer)

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from what :meth:`acting_parameters` and :meth:`training_state` gave."""
        self._state.load(acting, training, self._optimizer)
