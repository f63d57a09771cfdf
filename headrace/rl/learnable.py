"""Parameters with their optimizer: the one place where gradient steps are taken."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.rl.optimizers import Optimizer, clip_gradients
from headrace.rl.peers import Alone, Peers
from headrace.types import Array


class Learnable:
    """A flat vector of parameters with its gradients, its optimizer and the peers it shares steps with."""

    def __init__(self, gradients: Tensor, optimizer: Optimizer, *, max_norm: float | None) -> None:
        """``optimizer`` steps along ``gradients``, which are clipped to an L2 norm of ``max_norm`` before."""
        self._gradients, self._max_norm = gradients, max_norm
        self._optimizer = optimizer
        self.peers: Peers = Alone()

    def step(self, learning_rate: float, *terms: Tensor | float, rows: int) -> float:
        """One step along the gradients, a mean over ``rows``, clipped; returns their norm before.

        If the norm or any of ``terms`` (of the loss) is not finite these gradients aren't used, and the
        result isn't finite.
        """
        norm = float(torch.linalg.vector_norm(self._gradients))
        # A sum is finite only if everything in it is.
        sums = (term if isinstance(term, float) else float(term.sum()) for term in terms)
        finite = math.isfinite(norm + sum(sums))
        if self.peers.combine(self._gradients, rows if finite else 0):
            clip_gradients(self._gradients, self._max_norm)
            self._optimizer.step(learning_rate)
        return norm if finite else math.nan

    def step_with_others(self, learning_rate: float) -> None:
        """Take part in a step of the group with nothing to add. Alone: nothing happens."""
        self._gradients.zero_()
        self.step(learning_rate, rows=0)

    def state(self, prefix: str = "") -> dict[str, Array]:
        """The optimizer's state, its names after ``prefix``."""
        return {prefix + name: value for name, value in self._optimizer.state().items()}

    def load(self, training: Mapping[str, Array], prefix: str = "") -> None:
        """Inverse of :meth:`state`. KeyError or ValueError if it belongs to another optimizer."""
        own = {
            name.removeprefix(prefix): value for name, value in training.items() if name.startswith(prefix)
        }
        self._optimizer.load(own)
