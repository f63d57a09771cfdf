"""Batches of fragments, taken from the intake and stacked for the algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.rl.batch import stack_fragments
from headrace.types import Batch
from services.learner.intake import Intake
from services.learner.stock import TakenBatch


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """A batch as it was taken, and as the algorithm wants it."""

    taken: TakenBatch
    batch: Batch


class Batches:
    """The batches of an intake, in the order in which they are taken."""

    busy = "assembly"

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    @property
    def wait_reason(self) -> str:
        """What the intake waits for; empty: for nothing."""
        return self._intake.wait_reason

    def next(self, timeout_s: float) -> ReadyBatch | None:
        """The next batch, or None if there was none within ``timeout_s`` seconds."""
        taken = self._intake.next_batch(timeout_s=timeout_s)
        return None if taken is None else ReadyBatch(taken, stack_fragments(taken.fragments, taken.lags))
