"""Deep deterministic policy gradient, from replayed items to new parameters. Reads top to bottom.

Lillicrap et al., "Continuous control with deep reinforcement learning" (2016), algorithm 1; the noise that
explores is Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headrace.config.algorithms import DdpgConfig
from headrace.config.sections import Config
from headrace.rl.actor_critic import ActorCritic, Minibatch, skipped
from headrace.rl.off_policy import Learned
from headrace.rl.shared import Shared
from headrace.types import Array, ReplayBatch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_METRICS = ("value_loss", "q_value", "grad_norm", "policy_loss")


class Ddpg:
    """DDPG on one process. Deterministic: same seed and same batches give the same bits."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, DdpgConfig):
            raise TypeError(f"Ddpg needs a DdpgConfig, not {type(config.algorithm).__name__}")
        self._nets = ActorCritic(config, spec, config.algorithm, device=device, num_critics=1)

    @torch.no_grad()
    def learn(self, batch: ReplayBatch, *, env_steps: int, progress: float) -> Learned:
        """``batch.num_gradient_steps`` steps of critic and actor; means over them and the items' errors."""
        nets = self._nets
        critic_rate, actor_rate = nets.state.learning_rate(progress), nets.actor_learning_rate(progress)
        steps: list[tuple[float, ...]] = []
        errors: list[Tensor] = []
        non_finite = 0
        for part in nets.minibatches(batch, env_steps):
            next_action = nets.target_actor.forward(part.next_features).tanh_()
            next_pairs = torch.cat([part.next_features, next_action], dim=1)
            next_value = nets.target_critics.forward(next_pairs).squeeze(1)
            fit = nets.regress(part, next_value, critic_rate)
            policy_loss, norm = deterministic_policy_step(nets, part, actor_rate)
            nets.end_step(move_actor=True)
            errors.append(fit.error)
            steps.append((fit.loss, fit.q_value, fit.norm, policy_loss))
            non_finite += skipped(fit.norm, norm)
        return nets.learned(steps, _METRICS, errors, non_finite=non_finite, progress=progress)

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


def deterministic_policy_step(
    nets: ActorCritic, part: Minibatch, learning_rate: float
) -> tuple[float, float]:
    """One step of the actor up the first critic's value of its own actions; the loss, and the norm or NaN.

    Silver et al., "Deterministic Policy Gradient Algorithms" (2014), equation 9, through tanh.
    """
    action = nets.actor.forward(part.features).tanh_()
    q = nets.first_critic.forward(torch.cat([part.features, action], dim=1))
    q_gradient = part.weight.unsqueeze(1) * (-1.0 / len(q))
    slope = nets.first_critic.input_gradient(q_gradient, nets.actions)
    nets.actor.backward(slope.mul_(1.0 - action.square()))
    norm = nets.actor_learnable.step(learning_rate, q, rows=len(q))
    loss = -float(q.mean())
    return (loss, norm) if math.isfinite(norm) else (math.nan, norm)
