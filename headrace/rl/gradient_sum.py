"""Gradients summed up instead of stepped along: what a learner hands in where somebody else steps."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.sync.aggregation import FlatArray


class GradientSum:
    """Peers of a learner that takes no steps itself: its gradients are collected, weighted by their rows."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self.rows = 0
        """Rows behind what has been collected."""

    @torch.no_grad()
    def combine(self, gradients: Tensor, rows: int) -> bool:
        """Collect ``gradients``, a mean over ``rows``. There is never a step here."""
        if rows == 0:
            return False
        if self._sum is None:
            self._sum = gradients.clone()
        else:
            # A running mean: the first gradient alone stays bit for bit what it was.
            total = self.rows + rows
            self._sum.mul_(self.rows / total).add_(gradients, alpha=rows / total)
        self.rows += rows
        return False

    def agree(self, number: int) -> int:
        """What this learner says: in rounds nobody waits in the middle of an update."""
        return number

    def take(self, size: int) -> tuple[FlatArray, int]:
        """The mean gradient ``[size]`` and its rows, and begin anew. Zeros if nothing was collected."""
        collected, rows = self._sum, self.rows
        self._sum, self.rows = None, 0
        if collected is None:
            return np.zeros(size, np.float32), 0
        return collected.cpu().numpy(), rows
