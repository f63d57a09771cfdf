"""What DDPG, TD3 and SAC share: an actor, critics of its actions, their targets and optimizers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from headrace.config.algorithms import ActorCriticReplayConfig
from headrace.config.sections import Config
from headrace.nets.acting_network import NETWORK
from headrace.nets.action_rules import require_bounded, require_flat
from headrace.nets.actions import ActionLayout
from headrace.nets.features import FeatureEncoder
from headrace.nets.inputs import input_tensors
from headrace.nets.mlp import Mlp
from headrace.nets.twin_mlp import FLAT
from headrace.rl.learnable import Learnable
from headrace.rl.losses import squared_loss
from headrace.rl.normalizer import Moments
from headrace.rl.off_policy import (
    Learned,
    OffPolicyState,
    absolute,
    flat_state,
    load_flat,
    means,
    ready,
)
from headrace.rl.optimizers import Adam
from headrace.rl.shared import Shared
from headrace.rl.targets import bootstrapped, move_target
from headrace.types import Array, ReplayBatch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


_CRITICS = "critics/values"


class Minibatch(NamedTuple):
    """M items. Actions are packed: positions in [-1, 1]."""

    features: Tensor  # [M, features]
    pairs: Tensor  # [M, features + slots], features and actions side by side
    next_features: Tensor  # [M, features]
    returns: Tensor  # [M]
    discount: Tensor  # [M]
    weight: Tensor  # [M]


class Regression(NamedTuple):
    """One gradient step of the critics."""

    error: Tensor  # [M], mean over critics, absolute
    loss: float
    q_value: float
    norm: float  # NaN if the step was skipped


class ActorCritic:
    """Networks, targets, optimizers and counters. Deterministic in ``run.seed``.

    ``critics`` gives ``[M, 1]``, or ``[2, M, 1]`` if there are two. Packed actions are what critics read.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvironmentSpec,
        algorithm: ActorCriticReplayConfig,
        *,
        device: str,
        num_critics: int,
        outputs_per_slot: int = 1,
    ) -> None:
        """UnsupportedSpaceError or ConfigurationError if the spaces or the network can't be used."""
        require_bounded(spec.action, algorithm.name)
        self.encoder, self.layout = FeatureEncoder(spec.observation, config.policy), ActionLayout(spec.action)
        require_flat(config.policy, self.encoder, algorithm.name)
        self.state, self.device = OffPolicyState(config), torch.device(device)
        self._config = algorithm
        self.num_features, self.num_slots = self.encoder.num_features, self.layout.num_slots
        self.actions = slice(self.num_features, self.num_features + self.num_slots)
        generator = torch.Generator().manual_seed(self.state.network_seed)
        hidden, tanh = config.policy.hidden, config.policy.activation == "tanh"
        self.actor = Mlp(
            self.num_features,
            hidden,
            (self.num_slots * outputs_per_slot,),
            tanh=tanh,
            generator=generator,
            device=device,
        )
        self.critics = Mlp(
            self.num_features + self.num_slots,
            hidden,
            (1,),
            tanh=tanh,
            generator=generator,
            towers=num_critics,
            device=device,
        )
        self.first_critic = self.critics if num_critics == 1 else self.critics.tower(0)
        self.target_actor, self.target_critics = self.actor.clone(), self.critics.clone()
        self.actor_learnable, self._critics_learnable = (
            Learnable(
                network.gradients,
                Adam(network.values, network.gradients, epsilon=algorithm.adam_epsilon, fused=True),
                max_norm=algorithm.max_grad_norm,
            )
            for network in (self.actor, self.critics)
        )

    def minibatches(self, batch: ReplayBatch, env_steps: int) -> Iterator[Minibatch]:
        """The minibatches of one update, in order."""
        self.state.env_steps = env_steps
        items = ready(
            batch, lambda leaves: input_tensors(self.encoder, leaves, self.device), self.layout, self.device
        )
        features, size = items.inputs[FLAT], items.size // batch.num_gradient_steps
        whole = Minibatch(
            features,
            torch.cat([features, items.action], dim=1),
            items.next_inputs[FLAT],
            items.returns,
            items.discount,
            items.weight,
        )
        for first in range(0, items.size, size):
            yield Minibatch(*(tensor[first : first + size] for tensor in whole))

    def standard_normal(self, batch: ReplayBatch) -> Tensor:
        """Noise ``[N, slots]`` for all items of a batch, from the random state that is saved."""
        shape = (len(batch.importance_weights), self.num_slots)
        return torch.from_numpy(self.state.rng.standard_normal(shape, "float32")).to(self.device)

    def regress(self, part: Minibatch, next_value: Tensor, learning_rate: float) -> Regression:
        """One gradient step of all critics towards the items' returns bootstrapped from ``[M]``."""
        target = bootstrapped(part.returns, part.discount, next_value)
        q = self.critics.forward(part.pairs).squeeze(-1)
        error = q - target
        losses, gradient = squared_loss(error, part.weight)
        self.critics.backward(gradient.unsqueeze(-1))
        norm = self._critics_learnable.step(learning_rate, losses, rows=len(part.returns))
        by_item = error.abs() if error.dim() == 1 else error.abs().mean(0)
        return Regression(by_item, float(losses.mean()), float(q.mean()), norm)

    def actor_learning_rate(self, progress: float) -> float:
        """The actor's step size at ``progress``."""
        own = self._config.actor_learning_rate
        scale = 1.0 if own is None else own / self._config.learning_rate
        return scale * self.state.learning_rate(progress)

    def end_step(self, *, move_actor: bool) -> None:
        """Count a gradient step, and move the targets if it is time (the actor's only if it has one)."""
        self.state.gradient_steps += 1
        if self.state.target_is_due():
            move_target(self.target_critics.values, self.critics.values, self._config.tau)
            if move_actor:
                move_target(self.target_actor.values, self.actor.values, self._config.tau)

    def learned(
        self,
        steps: list[tuple[float, ...]],
        names: tuple[str, ...],
        errors: list[Tensor],
        *,
        non_finite: int,
        progress: float,
    ) -> Learned:
        """What one update gives, from the metrics ``names`` and errors ``[M]`` of each gradient step."""
        metrics = {
            **means(steps, names),
            "learning_rate": self.state.learning_rate(progress),
            "non_finite": float(non_finite),
        }
        return Learned(metrics, absolute(torch.cat(errors)))

    @property
    def shared(self) -> Shared:
        """What all learners of a run hold in common. Targets follow at each of them."""
        actor = {NETWORK + name: tensor for name, tensor in self.actor.named_parameters().items()}
        tensors = {**actor, _CRITICS: self.critics.values}
        return Shared(tensors, [self.actor_learnable, self._critics_learnable], Moments({}))

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act: the actor and how far exploration is. Copies."""
        actor = {NETWORK + name: value for name, value in self.actor.parameters().items()}
        return {**actor, **self.state.exploration()}

    def training_state(self) -> dict[str, Array]:
        """Critics, targets, optimizers, counters and random state. Copies."""
        return {
            **self.state.training_state(),
            **self.actor_learnable.state("actor/"),
            **self._critics_learnable.state("critics/"),
            **flat_state(_CRITICS, self.critics.values),
            **flat_state("target_critics/values", self.target_critics.values),
            **flat_state("target_actor/values", self.target_actor.values),
        }

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Inverse of both. Without ``training`` only the actor is taken in; its target is a copy of it."""
        self.actor.load({name.removeprefix(NETWORK): value for name, value in acting.items()})
        if training is None:
            move_target(self.target_actor.values, self.actor.values, 1.0)
            return
        load_flat(_CRITICS, self.critics.values, training)
        load_flat("target_critics/values", self.target_critics.values, training)
        load_flat("target_actor/values", self.target_actor.values, training)
        self.actor_learnable.load(training, "actor/")
        self._critics_learnable.load(training, "critics/")
        self.state.load(training)


def skipped(*norms: float) -> bool:
    """Whether any of a gradient step's parts was skipped for not being finite."""
    return not all(math.isfinite(norm) for norm in norms)
