"""IMPALA: an actor-critic whose samplers may lag behind, one gradient step per batch. Reads top to bottom.

Espeholt et al., "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures"
(2018). Each batch is first evaluated by the network as it is now; V-trace makes of it what that network is to
learn, and the same evaluation is the way back for the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from headrace.config.algorithms import ImpalaConfig
from headrace.config.sections import Config
from headrace.nets.policy import Evaluation
from headrace.rl.corrected import CorrectedExperience, corrected_experience
from headrace.rl.losses import a2c_policy_loss, approximate_kl, explained_variance, normalize, value_loss
from headrace.rl.on_policy import OnPolicyState
from headrace.rl.shared import Shared
from headrace.types import Array, Batch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm")

_LARGEST_LOG_RATIO = 20.0
"""In the estimate of the KL divergence: that metric must not overflow where the clipped weights don't."""


class Impala:
    """IMPALA on one process. Deterministic: same seed and same batches give the same bits."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, ImpalaConfig):
            raise TypeError(f"Impala needs an ImpalaConfig, not {type(config.algorithm).__name__}")
        self._config = config.algorithm
        self._state = OnPolicyState(config, spec, device=device)

    def update(self, batch: Batch, *, progress: float) -> dict[str, float]:
        """Learn from one batch, in one step."""
        config, state = self._config, self._state
        learning_rate = state.learning_rate(progress)
        experience, now = corrected_experience(state, config, batch)
        losses = self._gradients(experience, now) if now is not None else []
        steps = [state.step(learning_rate, losses, rows=experience.size)]
        state.merge_normalizers(batch)
        return {
            **state.means(_METRICS, steps),
            "clip_fraction": experience.over(config.policy_rho_bar),
            "explained_variance": explained_variance(experience.value, experience.target),
            "learning_rate": learning_rate,
            "epochs": 1.0,
            "non_finite": float(state.skipped(steps)),
        }

    @torch.no_grad()
    def _gradients(self, experience: CorrectedExperience, now: Evaluation) -> list[float]:
        """Leave the gradients of the loss in the policy; returns ``_METRICS`` up to the norm.

        The loss is policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy, each step's
        policy_loss times its importance weight: the paper's section 4.2.
        """
        config, policy = self._config, self._state.policy
        advantage = experience.advantage
        if config.normalize_advantage:
            advantage = normalize(advantage)

        policy_losses, log_prob_gradient = a2c_policy_loss(now.log_prob, advantage * experience.weight)
        value_losses, value_gradient = value_loss(now.value, experience.target)
        policy.backward(
            now,
            log_prob_gradient=log_prob_gradient,
            entropy_gradient=-config.entropy_coefficient / experience.size,
            value_gradient=value_gradient.mul_(config.value_coefficient),
        )
        kl = approximate_kl(experience.log_ratio.clamp(max=_LARGEST_LOG_RATIO))
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
