"""What on-policy algorithms share: the state they learn on, and a batch made ready to learn from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from headrace.config.algorithms import OnPolicyConfig
from headrace.config.choices import on_policy
from headrace.config.sections import Config
from headrace.nets.features import normalized_leaves
from headrace.nets.policy import TorchPolicy
from headrace.rl.learnable import Learnable
from headrace.rl.normalizer import VALUE_NORMALIZER, Moments, RunningMoments, observation_prefix
from headrace.rl.optimizers import make_optimizer, scheduled
from headrace.rl.random_state import RNG_STATE, pack_rng, unpack_rng
from headrace.rl.returns import batch_advantages
from headrace.rl.shared import Shared
from headrace.types import (
    ACTION,
    BEHAVIOR_LOG_PROB,
    OBSERVATION,
    VALID,
    VALUE,
    Array,
    Batch,
    leaves_of,
)

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class Experience:
    """The N valid transitions of a batch, lanes and steps flattened, ready to learn from.

    ``scalars`` ``[4, N]`` holds the rows log_prob (of the behavior policy), advantage, value (of the
    behavior policy) and target (the return to regress on), the last two in the value network's units.
    """

    inputs: Mapping[str, Tensor]  # [N, ...] each
    action: Tensor  # [slots, N], packed
    scalars: Tensor  # [4, N]

    @property
    def log_prob(self) -> Tensor:
        """``[N]``."""
        return self.scalars[0]

    @property
    def advantage(self) -> Tensor:
        """``[N]``."""
        return self.scalars[1]

    @property
    def value(self) -> Tensor:
        """``[N]``."""
        return self.scalars[2]

    @property
    def target(self) -> Tensor:
        """``[N]``."""
        return self.scalars[3]

    @property
    def size(self) -> int:
        """N."""
        return int(self.scalars.shape[1])

    def select(self, index: Tensor) -> Self:
        """The transitions at ``index`` ``[M]``."""
        return type(self)(
            {name: tensor.index_select(0, index) for name, tensor in self.inputs.items()},
            self.action.index_select(1, index),
            self.scalars.index_select(1, index),
        )


class OnPolicyState:
    """All that an on-policy algorithm remembers: policy, normalizers, random state."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str) -> None:
        seeds = np.random.SeedSequence(config.run.seed).spawn(2)
        self.config: OnPolicyConfig = on_policy(config)
        self.policy = TorchPolicy(spec, config.policy, seed=int(seeds[0].generate_state(1)[0]), device=device)
        optimizer = make_optimizer(self.config, self.policy.values, self.policy.gradients)
        self.learnable = Learnable(self.policy.gradients, optimizer, max_norm=self.config.max_grad_norm)
        self.rng = np.random.Generator(np.random.PCG64(seeds[1]))
        leaves = normalized_leaves(spec.observation) if config.policy.normalize_observation else ()
        self._observation_prefixes = tuple(observation_prefix(leaf.path) for leaf in leaves)
        shapes: dict[str, tuple[int, ...]] = {observation_prefix(leaf.path): leaf.shape for leaf in leaves}
        if self.config.normalize_value:
            shapes[VALUE_NORMALIZER] = ()
        self._moments = Moments(shapes)
        self.policy.encoder.load(self._moments.columns())

    def experience(self, batch: Batch) -> Experience:
        """Advantages and targets of a batch, flattened to its valid transitions.

        With ``normalize_value`` this batch's returns first join the running moments, so that targets and
        the published value scale belong together.
        """
        columns = batch.columns
        rows = valid_rows(batch)
        advantage = batch_advantages(batch, gamma=self.config.gamma, gae_lambda=self.config.gae_lambda)
        value = columns[VALUE].astype(np.float64)
        scale, shift = self.value_units(flat_rows(advantage + value, rows))
        scalars = np.stack(
            [
                flat_rows(columns[BEHAVIOR_LOG_PROB], rows),
                flat_rows(advantage, rows),
                flat_rows(value, rows) * scale + shift,
                flat_rows(advantage + value, rows) * scale + shift,
            ]
        )
        return Experience(*self.inputs_and_action(batch), self.policy.tensor(scalars.astype(np.float32)))

    def inputs_and_action(self, batch: Batch) -> tuple[Mapping[str, Tensor], Tensor]:
        """Encoded observations ``[N, ...]`` and packed actions ``[slots, N]`` of the valid transitions."""
        policy, rows = self.policy, valid_rows(batch)
        observation, action = leaves_of(OBSERVATION, batch.columns), leaves_of(ACTION, batch.columns)
        return (
            policy.inputs({path: flat_rows(leaf, rows) for path, leaf in observation.items()}),
            policy.tensor(policy.layout.pack({path: flat_rows(leaf, rows) for path, leaf in action.items()})),
        )

    def in_reward_units(self, value: Tensor) -> Array:
        """Values as the network gives them, in units of reward, float64."""
        exact = value.detach().cpu().numpy().astype(np.float64)
        moments = self._moments.totals.get(VALUE_NORMALIZER)
        if moments is not None:
            exact = exact * float(moments.std) + float(moments.mean)
        return exact / self.config.reward_scale

    def value_units(self, returns: Array) -> tuple[float, float]:
        """Scale and shift from units of reward to the value network's.

        With ``normalize_value`` the units follow the ``returns`` ``[N]`` from now on.
        """
        reward_scale = self.config.reward_scale
        moments = self._moments.totals.get(VALUE_NORMALIZER)
        if moments is None:
            return reward_scale, 0.0
        finite = returns[np.isfinite(returns)]
        self._moments.merge(VALUE_NORMALIZER, RunningMoments.of(finite * reward_scale))
        std = float(moments.std)
        return reward_scale / std, -float(moments.mean) / std

    def minibatches(self, size: int, minibatch_size: int) -> Iterator[Tensor]:
        """A fresh permutation of ``size`` transitions in near-equal parts of about ``minibatch_size``.

        In as many as any learner of the group needs; some may be empty, where one has too few transitions.
        """
        permutation = torch.from_numpy(self.rng.permutation(size)).to(self.policy.device)
        parts = self.learnable.peers.agree(max(1, round(size / minibatch_size)))
        return iter(torch.tensor_split(permutation, parts))

    def learning_rate(self, progress: float) -> float:
        """The step size at ``progress`` (0: start of the run, 1: its end)."""
        return scheduled(self.config.learning_rate, self.config.learning_rate_schedule, progress)

    def step(self, learning_rate: float, losses: list[float], *, rows: int) -> list[float]:
        """One step along the policy's gradients; returns ``losses`` (means over ``rows``) and their norm.

        Empty if there are no rows: then others of the group may have made the step. With a loss or a
        gradient that isn't finite these gradients aren't used, and the norm isn't finite.
        """
        if rows == 0:
            self.learnable.step_with_others(learning_rate)
            return []
        return [*losses, self.learnable.step(learning_rate, *losses, rows=rows)]

    def any_of_group(self, condition: bool) -> bool:
        """Whether ``condition`` holds at any learner of the group."""
        return self.learnable.peers.agree(int(condition)) > 0

    @staticmethod
    def means(names: Sequence[str], steps: Sequence[Sequence[float]]) -> dict[str, float]:
        """Mean of each metric over the gradient steps that were taken; zeros if there was none."""
        taken = [step for step in steps if step and math.isfinite(sum(step))]
        means = [fmean(metric) for metric in zip(*taken, strict=True)] or [0.0] * len(names)
        return dict(zip(names, means, strict=True))

    @staticmethod
    def skipped(steps: Sequence[Sequence[float]]) -> int:
        """Gradient steps that were not taken because something was not finite."""
        return sum(not math.isfinite(sum(step)) for step in steps)

    def merge_normalizers(self, batch: Batch) -> None:
        """Take what the batch's fragments have seen into the observation normalizer, if it is finite."""
        for prefix in self._observation_prefixes:
            delta = RunningMoments.from_columns(prefix, batch.columns)
            if np.isfinite(delta.mean).all() and np.isfinite(delta.m2).all():
                self._moments.merge(prefix, delta)
        self.policy.encoder.load(self._moments.columns())

    @property
    def shared(self) -> Shared:
        """What all learners of a run hold in common."""
        return Shared(
            self.policy.named_parameters(), [self.learnable], self._moments, self.policy.encoder.load
        )

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act: network and normalizers. Copies."""
        return {**self.policy.parameters(), **self._moments.columns()}

    def training_state(self) -> dict[str, Array]:
        """What else the next update depends on: optimizer and random state. Copies."""
        return {**self.learnable.state(), RNG_STATE: pack_rng(self.rng)}

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from saved state. Without ``training`` the optimizer and random state stay as they are.

        ValueError or KeyError if it belongs to another network or algorithm.
        """
        self.policy.load(acting)
        self._moments.load(acting)
        if training is not None:
            self.learnable.load(training)
            unpack_rng(self.rng, training[RNG_STATE])


def valid_rows(batch: Batch) -> Array | None:
    """Flat indices of the valid transitions; None if all are."""
    if VALID not in batch.columns:
        return None
    return np.flatnonzero(batch.columns[VALID])


def flat_rows(column: Array, rows: Array | None) -> Array:
    """``[T, B, ...]`` as ``[N, ...]``."""
    flat = column.reshape(-1, *column.shape[2:])
    return flat if rows is None else flat[rows]
