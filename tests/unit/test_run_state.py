from __future__ import annotations

from typing import Any

import pytest
from paramserving import make_report

from headrace.config.sections import StopConfig
from headrace.types import Evaluation, PolicyVersion
from services.paramserver.run_state import RunState


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_state(*, evaluated: bool = True, clock: Clock | None = None, **stop: Any) -> RunState:
    return RunState(StopConfig.model_validate(stop), evaluated=evaluated, clock=clock or Clock())


def evaluation(return_mean: float) -> Evaluation:
    return Evaluation(PolicyVersion(1, 7), return_mean, 1.0, 100)


def test_a_run_is_starting_until_its_first_version() -> None:
    state = make_state(updates=5)
    assert state.phase == "starting"
    state.on_version(make_report(0))
    assert state.phase == "running"


@pytest.mark.parametrize(
    ("stop", "last_before", "first_after"),
    [({"updates": 5}, 4, 5), ({"env_steps": 300}, 2, 3)],
    ids=["updates", "env_steps"],
)
def test_it_ends_at_the_count_and_not_before(
    stop: dict[str, int], last_before: int, first_after: int
) -> None:
    state = make_state(**stop)
    state.on_version(make_report(last_before))
    assert state.phase == "running"
    state.on_version(make_report(first_after))
    assert state.phase == "finished"
    assert state.reason.startswith(f"run.stop.{next(iter(stop))}: ")


def test_wall_time_counts_from_the_start_by_the_injected_clock() -> None:
    clock = Clock()
    state = make_state(wall_s=60, clock=clock)
    clock.now += 59.9
    state.on_time()
    assert state.phase == "starting"
    clock.now += 0.1
    state.on_time()
    assert (state.phase, state.reason) == ("finished", "run.stop.wall_s: 60 s have passed")


def test_an_evaluation_that_reaches_the_target_ends_the_run() -> None:
    state = make_state(**{"return": 475})
    state.on_evaluation(evaluation(474.9))
    assert not state.ended
    state.on_evaluation(evaluation(475.0))
    assert state.phase == "finished"
    assert "475 over 100 evaluation episodes of version 1.7" in state.reason


def test_with_an_evaluator_the_training_return_ends_nothing() -> None:
    state = make_state(**{"return": 475})
    state.on_version(make_report(200, episode_return_mean=500.0, episodes=1000))
    assert state.phase == "running"


def test_without_an_evaluator_the_training_return_ends_the_run() -> None:
    state = make_state(evaluated=False, **{"return": 475})
    state.on_version(make_report(200, episode_return_mean=480.0, episodes=1000))
    assert state.phase == "finished"


def test_a_few_lucky_episodes_end_nothing() -> None:
    state = make_state(evaluated=False, **{"return": 475})
    state.on_version(make_report(200, episode_return_mean=480.0, episodes=99))
    assert state.phase == "running"


def test_the_first_reason_stays() -> None:
    state = make_state(updates=5)
    state.end("interrupted", "Ctrl-C")
    state.end("failed", "later")
    state.on_version(make_report(10))
    assert (state.phase, state.reason) == ("interrupted", "Ctrl-C")
