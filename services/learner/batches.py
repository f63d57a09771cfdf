"""Batches of fragments, taken from the intake and stacked for the algorithm."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.rl.batch import stack_fragments
from headrace.types import Batch
from services.learner.intake import Intake
from services.learner.stock import TakenBatch


@dataclass(frozen=True, slots=True)
class ReadyBatch:
    """Fragments as they were taken, and as the algorithm wants them: one batch an update."""

    taken: TakenBatch
    batches: tuple[Batch, ...]


class Batches:
    """The batches of an intake, in the order in which they are taken."""

    busy = "assembly"

    def __init__(self, intake: Intake, *, each: int) -> None:
        """``each``: fragments of one update; what is taken at once may be for several."""
        self._intake = intake
        self._each = each

    @property
    def wait_reason(self) -> str:
        """What the intake waits for; empty: for nothing."""
        return self._intake.wait_reason

    def next(self, timeout_s: float) -> ReadyBatch | None:
        """The next batch, or None if there was none within ``timeout_s`` seconds."""
        taken = self._intake.next_batch(timeout_s=timeout_s)
        if taken is None:
            return None
        each = self._each
        return ReadyBatch(
            taken,
            tuple(
                stack_fragments(taken.fragments[first : first + each], taken.lags[first : first + each])
                for first in range(0, len(taken.fragments), each)
            ),
        )
