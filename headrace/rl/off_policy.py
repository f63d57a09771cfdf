"""What DQN, DDPG, TD3 and SAC share: items made ready to learn from, counters, random state, optimizers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.config.choices import off_policy
from headrace.config.sections import Config
from headrace.nets.actions import ActionLayout
from headrace.nets.exploration import RANDOM
from headrace.rl.optimizers import scheduled
from headrace.rl.random_state import RNG_STATE, pack_rng, unpack_rng
from headrace.types import (
    ACTION,
    DISCOUNT,
    N_STEP_RETURN,
    NEXT_OBSERVATION,
    OBSERVATION,
    Array,
    ReplayBatch,
    leaves_of,
)

_ENV_STEPS, _GRADIENT_STEPS = "counters/env_steps", "counters/gradient_steps"


class Learned(NamedTuple):
    """What one update gives besides parameters.

    ``td_errors`` ``[G * M]`` float32: absolute error of each item's value before its gradient step, in units
    of reward; 0 where it was not finite.
    """

    metrics: dict[str, float]
    td_errors: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Items:
    """N items ready to learn from, on the learner's device."""

    inputs: Mapping[str, Tensor]  # [N, ...] each, encoded observations
    next_inputs: Mapping[str, Tensor]  # [N, ...] each
    action: Tensor  # [N, slots], packed
    returns: Tensor  # [N], discounted rewards over the item's steps
    discount: Tensor  # [N], of the bootstrap; 0 where nothing follows
    weight: Tensor  # [N], of the item's loss

    def rows(self, start: int, stop: int) -> Items:
        """Items ``start`` to ``stop``, as views."""
        return Items(
            {name: tensor[start:stop] for name, tensor in self.inputs.items()},
            {name: tensor[start:stop] for name, tensor in self.next_inputs.items()},
            self.action[start:stop],
            self.returns[start:stop],
            self.discount[start:stop],
            self.weight[start:stop],
        )

    @property
    def size(self) -> int:
        """N."""
        return len(self.returns)


class OffPolicyState:
    """All that an off-policy algorithm remembers besides its networks: counters and random state."""

    def __init__(self, config: Config) -> None:
        seeds = np.random.SeedSequence(config.run.seed).spawn(2)
        self.config = off_policy(config)
        self.network_seed = int(seeds[0].generate_state(1)[0])
        self.rng = np.random.Generator(np.random.PCG64(seeds[1]))
        self.env_steps = 0
        self.gradient_steps = 0

    def learning_rate(self, progress: float) -> float:
        """The step size at ``progress`` (0: start of the run, 1: its end)."""
        return scheduled(self.config.learning_rate, self.config.learning_rate_schedule, progress)

    def target_is_due(self) -> bool:
        """Whether the target networks move after the gradient step that was counted last."""
        return self.gradient_steps % self.config.target_every == 0

    def exploration(self) -> dict[str, Array]:
        """What samplers must know of exploration, besides the policy."""
        return {RANDOM: np.array(self.env_steps < self.config.random_steps, np.float32)}

    def training_state(self) -> dict[str, Array]:
        """Counters and random state. Copies."""
        return {
            RNG_STATE: pack_rng(self.rng),
            _ENV_STEPS: np.array(self.env_steps, np.int64),
            _GRADIENT_STEPS: np.array(self.gradient_steps, np.int64),
        }

    def load(self, training: Mapping[str, Array]) -> None:
        """Inverse of :meth:`training_state`. KeyError if something is absent."""
        unpack_rng(self.rng, training[RNG_STATE])
        self.env_steps, self.gradient_steps = int(training[_ENV_STEPS]), int(training[_GRADIENT_STEPS])


def ready(
    batch: ReplayBatch,
    encode: Callable[[Mapping[str, Array]], Mapping[str, Tensor]],
    layout: ActionLayout,
    device: torch.device,
) -> Items:
    """The items of a batch as tensors. KeyError if a column is absent, ValueError if G doesn't divide N."""
    columns = batch.columns
    rows, steps = len(columns[N_STEP_RETURN]), batch.num_gradient_steps
    if steps < 1 or rows % steps or rows == 0:
        raise ValueError(f"{rows} items are no {steps} minibatches of equal size")
    packed = layout.pack(leaves_of(ACTION, columns))

    def column(array: Array) -> Tensor:
        return torch.tensor(np.ascontiguousarray(array, np.float32), device=device)

    return Items(
        encode(leaves_of(OBSERVATION, columns)),
        encode(leaves_of(NEXT_OBSERVATION, columns)),
        column(packed.T),
        column(columns[N_STEP_RETURN]),
        column(columns[DISCOUNT]),
        column(batch.importance_weights),
    )


def means(steps: list[tuple[float, ...]], names: tuple[str, ...]) -> dict[str, float]:
    """Mean of each metric over the gradient steps in which it is finite; 0 if there was none."""
    found: dict[str, float] = {}
    for index, name in enumerate(names):
        finite = [step[index] for step in steps if math.isfinite(step[index])]
        found[name] = fmean(finite) if finite else 0.0
    return found


def absolute(td_errors: Tensor) -> npt.NDArray[np.float32]:
    """Magnitudes ``[N]``; 0 where an error is not finite."""
    magnitudes: npt.NDArray[np.float32] = td_errors.abs().cpu().numpy()
    return np.where(np.isfinite(magnitudes), magnitudes, np.float32(0.0))


def flat_state(name: str, values: Tensor) -> dict[str, Array]:
    """A flat vector of parameters as one entry of a training state. A copy."""
    return {name: np.array(values.cpu().numpy())}


def load_flat(name: str, values: Tensor, training: Mapping[str, Array]) -> None:
    """Inverse of :func:`flat_state`; KeyError or ValueError if it belongs to another network."""
    saved = training[name]
    if saved.shape != tuple(values.shape):
        raise ValueError(f"{name} has shape {saved.shape}, expected {tuple(values.shape)}")
    values.copy_(torch.tensor(saved))
