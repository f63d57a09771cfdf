"""Deep Q-learning from replayed items: double, dueling, n-step, weighted. Reads top to bottom.

Mnih et al., "Human-level control through deep reinforcement learning" (2015); Hessel et al., "Rainbow"
(2018), for how its extensions fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headrace.config.algorithms import DqnConfig
from headrace.config.sections import Config
from headrace.nets.exploration import EPSILON
from headrace.nets.q_network import QNetwork
from headrace.rl.learnable import Learnable
from headrace.rl.losses import huber_loss
from headrace.rl.normalizer import Moments
from headrace.rl.off_policy import (
    Items,
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
from headrace.rl.targets import bootstrapped, greedy_value, move_target
from headrace.types import Array, ReplayBatch

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec

_METRICS = ("value_loss", "q_value", "grad_norm")
_TARGET, _OPTIMIZER = "target/values", "network/"
_ROWS_AT_ONCE = 1024
"""Rows the target network is asked for in one go: enough to keep a core busy, few enough for its cache."""


class Dqn:
    """DQN on one process. Deterministic: same seed and same batches give the same bits."""

    def __init__(self, config: Config, spec: EnvironmentSpec, *, device: str = "cpu") -> None:
        if not isinstance(config.algorithm, DqnConfig):
            raise TypeError(f"Dqn needs a DqnConfig, not {type(config.algorithm).__name__}")
        self._config, self._state = config.algorithm, OffPolicyState(config)
        self._network = QNetwork(
            spec,
            config.policy,
            dueling=config.algorithm.dueling,
            seed=self._state.network_seed,
            device=device,
        )
        self._target = self._network.target()
        values, gradients = self._network.values, self._network.gradients
        self._learnable = Learnable(
            gradients,
            Adam(values, gradients, epsilon=self._config.adam_epsilon, fused=True),
            max_norm=self._config.max_grad_norm,
        )

    @torch.no_grad()
    def learn(self, batch: ReplayBatch, *, env_steps: int, progress: float) -> Learned:
        """``batch.num_gradient_steps`` gradient steps; returns means over them and the items' errors."""
        state, network = self._state, self._network
        state.env_steps = env_steps
        learning_rate = state.learning_rate(progress)
        items = ready(batch, network.inputs, network.layout, network.device)
        action, size = items.action.long(), items.size // batch.num_gradient_steps
        td_errors = torch.empty(items.size, device=network.device)
        steps: list[tuple[float, ...]] = []
        for start, stop in self._between_moves(batch.num_gradient_steps, size):
            target_q = self._target.forward(items.rows(start * size, stop * size).next_inputs)
            for step in range(start, stop):
                first, last = step * size, (step + 1) * size
                td_errors[first:last], metrics = self._gradient_step(
                    items.rows(first, last),
                    action[first:last],
                    target_q[first - start * size : last - start * size],
                    learning_rate,
                )
                steps.append(metrics)
                state.gradient_steps += 1
            if state.target_is_due():
                move_target(self._target.values, network.values, self._config.tau)
        norms = [metrics[-1] for metrics in steps]
        return Learned(
            {
                **means(steps, _METRICS),
                "learning_rate": learning_rate,
                "epsilon": self._epsilon(),
                "non_finite": float(np.count_nonzero(~np.isfinite(norms))),
            },
            absolute(td_errors),
        )

    def _between_moves(self, num_steps: int, size: int) -> Iterator[tuple[int, int]]:
        """Runs of gradient steps, (start, stop), within which the target network stays as it is."""
        start, done, every = 0, self._state.gradient_steps, self._config.target_every
        at_once = max(1, _ROWS_AT_ONCE // size)
        while start < num_steps:
            until_move = every - (done + start) % every
            stop = min(num_steps, start + until_move, start + at_once)
            yield start, stop
            start = stop

    def _gradient_step(
        self, items: Items, action: Tensor, target_q: Tensor, learning_rate: float
    ) -> tuple[Tensor, tuple[float, ...]]:
        """One step on M items; their errors ``[M]`` and ``_METRICS``, with a norm of NaN if skipped."""
        network = self._network
        chooser_q = network.forward(items.next_inputs) if self._config.double else None
        target = bootstrapped(items.returns, items.discount, greedy_value(target_q, chooser_q))
        q = network.forward_for_backward(items.inputs)
        value = q.gather(1, action).squeeze(1)
        error = value - target
        losses, gradient = huber_loss(error, items.weight)
        network.backward(torch.zeros_like(q).scatter_(1, action, gradient.unsqueeze(1)))
        norm = self._learnable.step(learning_rate, losses, rows=items.size)
        return error, (float(losses.mean()), float(value.mean()), norm)

    def _epsilon(self) -> float:
        """Probability of a random action by now, before any sampler's own exponent."""
        config = self._config
        share = (
            min(1.0, self._state.env_steps / config.exploration_steps) if config.exploration_steps else 1.0
        )
        return config.epsilon_initial + share * (config.epsilon_final - config.epsilon_initial)

    @property
    def shared(self) -> Shared:
        """What all learners of a run hold in common."""
        return Shared(self._network.named_parameters(), [self._learnable], Moments({}))

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act with this policy: the network and how far exploration is."""
        epsilon = np.array(self._epsilon(), np.float32)
        return {**self._network.parameters(), **self._state.exploration(), EPSILON: epsilon}

    def training_state(self) -> dict[str, Array]:
        """What else is needed to go on exactly as if never interrupted."""
        return {
            **self._state.training_state(),
            **self._learnable.state(_OPTIMIZER),
            **flat_state(_TARGET, self._target.values),
        }

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from what :meth:`acting_parameters` and :meth:`training_state` gave."""
        self._network.load(acting)
        if training is None:
            move_target(self._target.values, self._network.values, 1.0)
            return
        load_flat(_TARGET, self._target.values, training)
        self._learnable.load(training, _OPTIMIZER)
        self._state.load(training)
