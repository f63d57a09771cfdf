"""Whether a contribution is of use, and how much it counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.events import EventLog
from headrace.sync.aggregation import first_not_finite
from headrace.sync.contribution import Contribution
from headrace.sync.staleness import INVALID, STALE, Judgement, StalenessRule
from headrace.types import PolicyVersion
from services.paramserver.rounds.model import SharedModel


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a contribution. ``lag`` in versions; ``detail`` says why it is not used."""

    outcome: str
    factor: float
    lag: int
    detail: str = ""

    @property
    def refused(self) -> bool:
        """Whether it is not used at all."""
        return self.outcome in (STALE, INVALID)


def judge(
    contribution: Contribution, model: SharedModel, given: PolicyVersion, rule: StalenessRule
) -> Verdict:
    """Invalid if it is not what it says, stale if it is too old. ``given``: its learner's version.

    One that was not computed from ``given`` is of another epoch or of a version that the learner never got
    on this stream: nobody knows what its numbers start from.
    """
    lag = max(0, model.version.number - contribution.base.number)
    problem = _problem_of(model, contribution)
    if problem:
        return Verdict(INVALID, 0.0, lag, problem)
    judgement = rule.judge(lag) if contribution.base == given else Judgement(STALE, 0.0)
    if judgement.outcome == STALE:
        detail = f"computed from version {contribution.base}, the newest is {model.version}: resample"
        return Verdict(STALE, 0.0, lag, detail)
    return Verdict(judgement.outcome, judgement.factor, lag)


def tell_invalid(
    events: EventLog, learner_id: str, incarnation: int, contribution: Contribution, reason: str
) -> None:
    """Say whose contribution was refused, and where it comes from."""
    events.emit(
        "contribution_invalid",
        reason=reason,
        learner=learner_id,
        incarnation=incarnation,
        sequence=contribution.sequence,
        base=str(contribution.base),
    )


def _problem_of(model: SharedModel, contribution: Contribution) -> str:
    """Why a contribution can't be used, in words; empty if it can."""
    kinds = ("gradient",) if model.takes_gradients else ("values", "change", "none")
    if contribution.kind not in kinds:
        return f"a contribution of kind {contribution.kind}, where {' or '.join(kinds)} was expected"
    place = first_not_finite(contribution.vector)
    if place is not None:
        return f"{model.layout.name_of(place)} is {contribution.vector[place]}"
    for name, array in contribution.state.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{name} is not finite"
    if not math.isfinite(contribution.learning_rate):
        return f"the learning rate is {contribution.learning_rate}"
    return model.mismatch(contribution.state)
