"""Optimizers over one flat vector: a handful of operations a step, and a state that is saved exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from headrace.config.algorithms import ClippedConfig, OnPolicyConfig, SingleStepConfig
from headrace.types import Array


class Optimizer(Protocol):
    """Changes ``values`` along ``gradients``, in place."""

    def step(self, learning_rate: float) -> None:
        """One step along the gradients as they are now."""
        ...

    def state(self) -> dict[str, Array]:
        """Everything the next step depends on, by name."""
        ...

    def load(self, state: Mapping[str, Array]) -> None:
        """Inverse of :meth:`state`. KeyError or ValueError if it belongs to another optimizer."""
        ...


class Adam:
    """Kingma and Ba, "Adam" (2015), algorithm 1. Same arithmetic as ``torch.optim.Adam``."""

    def __init__(
        self,
        values: Tensor,
        gradients: Tensor,
        *,
        epsilon: float,
        betas: tuple[float, float] = (0.9, 0.999),
        fused: bool = False,
    ) -> None:
        """``fused``: in one pass over memory, three times faster and rounded a little differently."""
        self._values, self._gradients = values, gradients
        self._fused_steps = torch.zeros((), device=values.device) if fused else None
        self._epsilon, self._betas = epsilon, betas
        self._mean, self._mean_square = torch.zeros_like(values), torch.zeros_like(values)
        self._denominator = torch.empty_like(values)
        self._steps = 0

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One step along the gradients as they are now."""
        self._steps += 1
        beta1, beta2 = self._betas
        if self._fused_steps is not None:
            self._fused_steps.fill_(self._steps)
            # What torch.optim.Adam(fused=True) calls, without its bookkeeping; torch is pinned.
            torch._fused_adam_(
                [self._values],
                [self._gradients],
                [self._mean],
                [self._mean_square],
                [],
                [self._fused_steps],
                lr=learning_rate,
                beta1=beta1,
                beta2=beta2,
                weight_decay=0.0,
                eps=self._epsilon,
                amsgrad=False,
                maximize=False,
            )
            return
        self._mean.lerp_(self._gradients, 1.0 - beta1)
        self._mean_square.mul_(beta2).addcmul_(self._gradients, self._gradients, value=1.0 - beta2)
        correction = (1.0 - beta2**self._steps) ** 0.5
        torch.sqrt(self._mean_square, out=self._denominator)
        self._denominator.div_(correction).add_(self._epsilon)
        self._values.addcdiv_(
            self._mean, self._denominator, value=-learning_rate / (1.0 - beta1**self._steps)
        )

    def state(self) -> dict[str, Array]:
        """Both moments ``[num_parameters]`` and the number of steps."""
        return {
            "optimizer/mean": self._mean.cpu().numpy().copy(),
            "optimizer/mean_square": self._mean_square.cpu().numpy().copy(),
            "optimizer/steps": np.array(self._steps, np.int64),
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Inverse of :meth:`state`."""
        _copy(self._mean, state["optimizer/mean"])
        _copy(self._mean_square, state["optimizer/mean_square"])
        self._steps = int(state["optimizer/steps"])


class RmsProp:
    """Hinton, "Neural Networks for Machine Learning", lecture 6e (2012). As ``torch.optim.RMSprop``."""

    def __init__(self, values: Tensor, gradients: Tensor, *, epsilon: float, decay: float) -> None:
        self._values, self._gradients = values, gradients
        self._epsilon, self._decay = epsilon, decay
        self._mean_square = torch.zeros_like(values)

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One step along the gradients as they are now."""
        self._mean_square.mul_(self._decay).addcmul_(
            self._gradients, self._gradients, value=1.0 - self._decay
        )
        self._values.addcdiv_(
            self._gradients, self._mean_square.sqrt().add_(self._epsilon), value=-learning_rate
        )

    def state(self) -> dict[str, Array]:
        """The mean square ``[num_parameters]``."""
        return {"optimizer/mean_square": self._mean_square.cpu().numpy().copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Inverse of :meth:`state`."""
        _copy(self._mean_square, state["optimizer/mean_square"])


def make_optimizer(config: OnPolicyConfig, values: Tensor, gradients: Tensor) -> Optimizer:
    """The optimizer that an on-policy algorithm's section asks for. TypeError if it names none."""
    if isinstance(config, ClippedConfig):
        return Adam(values, gradients, epsilon=config.adam_epsilon)
    if not isinstance(config, SingleStepConfig):
        raise TypeError(f"no optimizer is known for {config.name}")
    if config.optimizer == "rmsprop":
        return RmsProp(values, gradients, epsilon=config.optimizer_epsilon, decay=config.rmsprop_decay)
    return Adam(values, gradients, epsilon=config.optimizer_epsilon)


def scheduled(learning_rate: float, schedule: str, progress: float) -> float:
    """The step size at ``progress`` (0: start of the run, 1: its end)."""
    return learning_rate * (1.0 - min(max(progress, 0.0), 1.0)) if schedule == "linear" else learning_rate


def clip_gradients(gradients: Tensor, max_norm: float | None) -> float:
    """Scale gradients, in place, to an L2 norm of at most ``max_norm``; returns the norm before."""
    norm = float(torch.linalg.vector_norm(gradients))
    if max_norm is not None and norm > max_norm:
        gradients.mul_(max_norm / (norm + 1e-6))
    return norm


def _copy(target: Tensor, source: Array) -> None:
    if tuple(source.shape) != tuple(target.shape):
        raise ValueError(f"optimizer state has shape {tuple(source.shape)}, expected {tuple(target.shape)}")
    with torch.no_grad():
        target.copy_(torch.tensor(source))
