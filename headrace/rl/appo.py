"""APPO: PPO for samplers that lag behind.

PPO's ratio does two things: it corrects for the policy that acted, and it marks how far a step may go. Here
they are two ratios, after Hilton, Cobbe and Schulman, "Batch size-invariance for policy optimization" (2022),
section 3. The *behavior* policy acted; the *proximal* one is the policy as it is when the update begins:

    loss = -min(rho_bar, proximal / behavior) * min(r A, clip(r, 1 - c, 1 + c) A),    r = policy / proximal

so that the clip range is whole however old the experience is. The proximal policy could also follow slowly
behind, as in that paper, which makes the step independent of the batch size. The one at the beginning is that
of Fu et al., "AReaL" (2025): it needs no second set of parameters, only its log probabilities, and on fresh
experience the two ratios are one again and this is PPO. Advantages are V-trace's, of that same policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from headrace.config.algorithms import AppoConfig
from headrace.config.sections import Config
from headrace.rl.corrected import CorrectedExperience, corrected_experience
from headrace.rl.on_policy import Experience
from headrace.rl.ppo import Ppo
from headrace.types import Batch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


class Appo(Ppo):
    """PPO's epochs and minibatches over experience that was first corrected for its age."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, AppoConfig):
            raise TypeError(f"Appo needs an AppoConfig, not {type(config.algorithm).__name__}")
        super().__init__(config, spec, device=device)
        self._vtrace = config.algorithm

    def _experience(self, batch: Batch) -> Experience:
        """Its log_prob is that of the proximal policy, around which PPO clips."""
        return corrected_experience(self._state, self._vtrace, batch)[0]

    def _advantage(self, minibatch: Experience) -> Tensor:
        """The weight is never negative, so PPO's loss of a weighted advantage is its weighted loss."""
        assert isinstance(minibatch, CorrectedExperience)
        return super()._advantage(minibatch) * minibatch.weight
