"""Soft actor-critic with an adapted temperature, from replayed items to new parameters. Reads top to bottom.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018), algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.config.algorithms import SacConfig
from headrace.config.sections import Config
from headrace.nets.squashed_gaussian import SquashedGaussian
from headrace.rl.actor_critic import ActorCritic, Minibatch, skipped
from headrace.rl.learnable import Learnable
from headrace.rl.off_policy import Learned, flat_state, load_flat
from headrace.rl.optimizers import Adam
from headrace.rl.shared import Shared
from headrace.rl.targets import soft_value
from headrace.types import Array, ReplayBatch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_METRICS = ("value_loss", "q_value", "grad_norm", "policy_loss", "entropy", "alpha")
_LOG_ALPHA, _ALPHA = "log_alpha", "alpha/"


class Sac:
    """SAC on one process. Deterministic: same seed and same batches give the same bits."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, SacConfig):
            raise TypeError(f"Sac needs a SacConfig, not {type(config.algorithm).__name__}")
        self._config = config.algorithm
        self._nets = ActorCritic(
            config, spec, config.algorithm, device=device, num_critics=2, outputs_per_slot=2
        )
        target = config.algorithm.target_entropy
        self._target_entropy = -float(self._nets.num_slots) if target is None else target
        self._log_alpha = torch.tensor([math.log(config.algorithm.initial_alpha)], device=device)
        self._log_alpha_gradient = torch.zeros_like(self._log_alpha)
        self._alpha_learnable = Learnable(
            self._log_alpha_gradient,
            Adam(
                self._log_alpha, self._log_alpha_gradient, epsilon=config.algorithm.adam_epsilon, fused=True
            ),
            max_norm=None,
        )

    @torch.no_grad()
    def learn(self, batch: ReplayBatch, *, env_steps: int, progress: float) -> Learned:
        """``batch.num_gradient_steps`` steps of critics, actor and temperature."""
        nets = self._nets
        critic_rate, actor_rate = nets.state.learning_rate(progress), nets.actor_learning_rate(progress)
        alpha_rate = critic_rate
        if self._config.alpha_learning_rate is not None:
            alpha_rate *= self._config.alpha_learning_rate / self._config.learning_rate
        next_noise, noise = nets.standard_normal(batch), nets.standard_normal(batch)
        steps: list[tuple[float, ...]] = []
        errors: list[Tensor] = []
        non_finite = seen = 0
        for part in nets.minibatches(batch, env_steps):
            rows = slice(seen, seen + len(part.returns))
            alpha = math.exp(float(self._log_alpha))
            fit = nets.regress(part, self._next_value(part, next_noise[rows], alpha), critic_rate)
            policy_loss, log_prob, norm = self._policy_step(part, noise[rows], alpha, actor_rate)
            self._temperature_step(log_prob, alpha_rate, rows=len(part.returns) if math.isfinite(norm) else 0)
            nets.end_step(move_actor=False)
            errors.append(fit.error)
            steps.append((fit.loss, fit.q_value, fit.norm, policy_loss, -log_prob, alpha))
            non_finite += skipped(fit.norm, norm)
            seen = rows.stop
        return nets.learned(steps, _METRICS, errors, non_finite=non_finite, progress=progress)

    def _next_value(self, part: Minibatch, noise: Tensor, alpha: float) -> Tensor:
        """The soft value ``[M]`` of the next observations, by the target critics and the policy as it is."""
        sample = SquashedGaussian(self._nets.actor.forward(part.next_features), noise)
        next_pairs = torch.cat([part.next_features, sample.action], dim=1)
        return soft_value(self._nets.target_critics.forward(next_pairs).squeeze(2), sample.log_prob, alpha)

    def _policy_step(
        self, part: Minibatch, noise: Tensor, alpha: float, learning_rate: float
    ) -> tuple[float, float, float]:
        """One step of the actor down ``alpha log pi - min Q``: loss, mean log_prob, and the norm or NaN."""
        nets = self._nets
        sample = SquashedGaussian(nets.actor.forward(part.features), noise)
        q = nets.critics.forward(torch.cat([part.features, sample.action], dim=1))
        smaller, which = torch.min(q, 0, keepdim=True)  # [1, M, 1]
        weight = part.weight * (1.0 / len(part.weight))
        q_gradient = torch.zeros_like(q).scatter_(0, which, -weight.view(1, -1, 1))
        slope = nets.critics.input_gradient(q_gradient, nets.actions)
        nets.actor.backward(sample.backward(slope, weight * alpha))
        norm = nets.actor_learnable.step(learning_rate, smaller, sample.log_prob, rows=len(part.returns))
        log_prob = float(sample.log_prob.mean())
        loss = alpha * log_prob - float(smaller.mean())
        return (loss, log_prob, norm) if math.isfinite(norm) else (math.nan, log_prob, norm)

    def _temperature_step(self, log_prob: float, learning_rate: float, *, rows: int) -> None:
        """One step of log alpha down ``-log alpha (log pi + target entropy)``: up while entropy is low."""
        self._log_alpha_gradient.fill_(-(log_prob + self._target_entropy))
        self._alpha_learnable.step(learning_rate, rows=rows)

    @property
    def shared(self) -> Shared:
        """What all learners of a run hold in common."""
        shared = self._nets.shared
        tensors = {**shared.tensors, _LOG_ALPHA: self._log_alpha}
        return Shared(tensors, [*shared.learnables, self._alpha_learnable], shared.moments)

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act with this policy."""
        return self._nets.acting_parameters()

    def training_state(self) -> dict[str, Array]:
        """What else is needed to go on exactly as if never interrupted."""
        return {
            **self._nets.training_state(),
            **flat_state(_LOG_ALPHA, self._log_alpha),
            **self._alpha_learnable.state(_ALPHA),
        }

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from what :meth:`acting_parameters` and :meth:`training_state` gave."""
        self._nets.load(acting, training)
        if training is not None:
            load_flat(_LOG_ALPHA, self._log_alpha, training)
            self._alpha_learnable.load(training, _ALPHA)
