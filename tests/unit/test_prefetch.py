"""How long the trainer was kept waiting is not how long the intake waited beside it."""

from __future__ import annotations

from pipe_simulation import make_config

from headrace.types import PolicyVersion
from services.learner.batches import Batches
from services.learner.intake import Intake
from services.learner.prefetch import Prefetcher


def make_intake() -> Intake:
    intake = Intake(make_config())
    intake.restore([], PolicyVersion(1, 0))
    return intake


def test_a_trainer_that_computes_does_not_wait_whatever_the_intake_waits_for() -> None:
    intake = make_intake()
    with Prefetcher(Batches(intake, each=1), depth=1) as batches:
        while not intake.wait_seconds.get("samplers"):
            pass
        assert not batches.wait_seconds


def test_a_trainer_that_is_kept_waiting_knows_for_what() -> None:
    with Prefetcher(Batches(make_intake(), each=1), depth=1) as batches:
        assert batches.take(timeout_s=0.3) is None
    assert batches.wait_seconds["samplers"] >= 0.2
