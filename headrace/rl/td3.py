"""Twin delayed deep deterministic policy gradient, from items to parameters. Reads top to bottom.

Fujimoto et al., "Addressing Function Approximation Error in Actor-Critic Methods" (2018), algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.config.algorithms import Td3Config
from headrace.config.sections import Config
from headrace.rl.actor_critic import ActorCritic, Minibatch, skipped
from headrace.rl.ddpg import deterministic_policy_step
from headrace.rl.off_policy import Learned
from headrace.rl.shared import Shared
from headrace.rl.targets import smoothed_action
from headrace.types import Array, ReplayBatch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_METRICS = ("value_loss", "q_value", "grad_norm", "policy_loss")


class Td3:
    """TD3 on one process. Deterministic: same seed and same batches give the same bits."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, Td3Config):
            raise TypeError(f"Td3 needs a Td3Config, not {type(config.algorithm).__name__}")
        self._config = config.algorithm
        self._nets = ActorCritic(config, spec, config.algorithm, device=device, num_critics=2)

    @torch.no_grad()
    def learn(self, batch: ReplayBatch, *, env_steps: int, progress: float) -> Learned:
        """``batch.num_gradient_steps`` steps of the critics, and every ``policy_delay`` one of the actor."""
        nets = self._nets
        critic_rate, actor_rate = nets.state.learning_rate(progress), nets.actor_learning_rate(progress)
        noise = nets.standard_normal(batch).mul_(self._config.target_noise)
        steps: list[tuple[float, ...]] = []
        errors: list[Tensor] = []
        non_finite = seen = 0
        for part in nets.minibatches(batch, env_steps):
            size = len(part.returns)
            next_value = self._next_value(part, noise[seen : seen + size])
            fit = nets.regress(part, next_value, critic_rate)
            policy_loss, norm = math.nan, 0.0
            if (nets.state.gradient_steps + 1) % self._config.policy_delay == 0:
                policy_loss, norm = deterministic_policy_step(nets, part, actor_rate)
            nets.end_step(move_actor=True)
            errors.append(fit.error)
            steps.append((fit.loss, fit.q_value, fit.norm, policy_loss))
            non_finite += skipped(fit.norm, norm)
            seen += size
        return nets.learned(steps, _METRICS, errors, non_finite=non_finite, progress=progress)

    def _next_value(self, part: Minibatch, noise: Tensor) -> Tensor:
        """The smaller of both target critics' values ``[M]`` of the target actor's smoothed action."""
        action = self._nets.target_actor.forward(part.next_features).tanh_()
        action = smoothed_action(action, noise, self._config.target_noise_clip)
        next_pairs = torch.cat([part.next_features, action], dim=1)
        return torch.amin(self._nets.target_critics.forward(next_pairs), 0).squeeze(1)

    @property
    def shared(self) -> Shared:
        """What all learners of a run hold in common."""
        return self._nets.shared

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act with this policy."""
        return self._nets.acting_parameters()

    def training_state(self) -> dict[str, Array]:
        """What else is needed to go on exactly as if never interrupted."""
        return self._nets.training_state()

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from what :meth:`acting_parameters` and :meth:`training_state` gave."""
        self._nets.load(acting, training)
