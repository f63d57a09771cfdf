"""Environments that raise, lie or are slow to come back cost their own episode and nothing else."""

from __future__ import annotations

import threading
from typing import Any

import environments
import environments_of_lanes
import numpy as np
import pytest
from lane_driver import drive, make_lanes, steps_of

from headrace.config.sections import EnvironmentConfig, ValidationConfig
from headrace.envs.lanes import Lanes
from headrace.errors import EnvironmentFaultError

REASONS = {
    "nan_reward": "non_finite",
    "inf_reward": "non_finite",
    "nan_observation": "non_finite",
    "huge_reward": "out_of_range",
    "wrong_shape": "wrong_shape",
    "wrong_dtype": "wrong_dtype",
    "outside_space": "outside_space",
}


def config_of(name: str, **kwargs: Any) -> EnvironmentConfig:
    return EnvironmentConfig(id=f"environments:{name}", kwargs=kwargs)


class Clock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("kind", REASONS)
def test_poison_is_refused_with_its_reason_and_nothing_bad_comes_out(kind: str) -> None:
    config = config_of("PoisonEnv", kind=kind, probability=0.02)
    log = drive(make_lanes(config, num_lanes=5), config, 400)
    assert {discard.reason for _, discard in log.discards} == {REASONS[kind]}
    assert all(discard.produced for _, discard in log.discards)
    for transition in log.transitions:
        assert np.all(np.isfinite(transition.observation[""]))
        assert np.all(np.isfinite(transition.next_observation[""]))
        assert transition.observation[""].min() >= 0
        assert abs(transition.reward) < 1e9
        assert transition.next_observation[""][1] == transition.observation[""][1] + 1
    assert len(log.transitions) + len(log.voided) + len(log.discards) == 5 * 400


@pytest.mark.parametrize("kind", ["nan_reward", "outside_space", "wrong_shape"])
def test_a_refusal_can_be_reproduced_from_its_provenance(kind: str) -> None:
    config = config_of("PoisonEnv", kind=kind, probability=0.02)
    log = drive(make_lanes(config, num_lanes=3), config, 400)
    # The first discard of a lane: before it, the lane's environment only had episodes that ended.
    for lane in range(3):
        discard = next(d for _, d in log.discards if d.lane == lane)
        environment = environments.PoisonEnv(kind=kind, probability=0.02)
        environment.reset(seed=discard.seed)
        for _ in range(discard.episode):
            over = False
            while not over:
                *_, terminated, truncated, _ = environment.step(0)
                over = terminated or truncated
            environment.reset()
        for _ in range(discard.step):
            environment.step(0)
        observation, reward, *_ = environment.step(0)
        bad = {"nan_reward": np.isnan(reward), "outside_space": np.any(np.asarray(observation) < 0)}
        assert bad.get(kind, np.shape(observation) != (2,))


def test_a_raising_step_voids_its_episode_and_the_other_lanes_go_on() -> None:
    config = config_of("FaultyEnv", kind="raise_step", probability=0.01)
    log = drive(make_lanes(config, num_lanes=5), config, 400)
    assert log.discards
    for row, discard in log.discards:
        assert discard.reason == "fault_raise_step"
        assert discard.detail.startswith("RuntimeError: simulator error in step")
        assert not discard.produced
        others = [lane for lane in range(5) if lane not in {d.lane for r, d in log.discards if r == row}]
        assert np.all(log.valid[row][others])
    produced = sum(int(valid.sum()) for valid in log.valid)
    assert produced == len(log.transitions) + len(log.voided)


def test_an_environment_that_calls_sys_exit_is_a_fault_like_any_other() -> None:
    config = config_of("FaultyEnv", kind="sys_exit", probability=0.01)
    log = drive(make_lanes(config, num_lanes=3), config, 300)
    assert log.discards
    assert all(discard.reason == "fault_raise_step" for _, discard in log.discards)
    assert log.discards[0][1].detail.startswith("SystemExit: 2")


def test_a_raising_reset_voids_only_the_episode_to_come() -> None:
    config = config_of("FaultyEnv", kind="raise_reset", probability=0.02)
    lanes = make_lanes(config, num_lanes=5)
    log = drive(lanes, config, 400)
    assert log.discards
    # What fails at the very end would void a row that was not taken any more.
    assert lanes.restarts["fault_raise_reset"] == len(log.discards) + len(lanes._owed)
    for row, discard in log.discards:
        assert (discard.reason, discard.step, discard.produced) == ("fault_raise_reset", 0, False)
        assert not log.valid[row][discard.lane]
    assert not log.voided


@pytest.mark.parametrize(("kind", "name"), [("raise_always", "FaultyEnv"), ("nan_reward", "PoisonEnv")])
def test_k_faults_in_a_row_end_with_the_reason(kind: str, name: str) -> None:
    config = config_of(name, kind=kind, probability=1.0)
    lanes = make_lanes(config, num_lanes=2, max_consecutive_faults=4)
    lanes.reset()
    with pytest.raises(EnvironmentFaultError) as ended:
        list(steps_of(lanes, config, 100))
    text = str(ended.value)
    assert text.startswith("lane 0 failed 4 times in a row")
    assert ("RuntimeError: simulator error in step" if name == "FaultyEnv" else "reward is nan") in text
    assert max(lanes.restarts.values()) <= 2 * 4


def test_an_environment_that_cannot_be_built_again_ends_with_the_reason() -> None:
    lanes = make_lanes(config_of("CountingEnv"), num_lanes=1, max_consecutive_faults=3)
    lanes._backend._config = config_of("CountingEnv", no_such_argument=1)  # type: ignore[attr-defined]
    lanes.reset()
    _replace_step(lanes, 0, _raise)
    with pytest.raises(EnvironmentFaultError, match="could not be built"):
        list(steps_of(lanes, config_of("CountingEnv"), 20))


def test_a_finished_episode_forgives_earlier_faults() -> None:
    config = config_of("FaultyEnv", kind="raise_step", probability=0.02, max_length=10)
    lanes = make_lanes(config, num_lanes=2, max_consecutive_faults=4)
    log = drive(lanes, config, 600)
    assert len(log.discards) > 8


def test_the_backoff_doubles_and_blocks_nobody() -> None:
    clock = Clock()
    config = config_of("FaultyEnv", kind="raise_always")
    lanes = make_lanes(config, num_lanes=2, restart_backoff_s=1.0, clock=clock, max_consecutive_faults=9)
    _keep_alive(lanes, lane=1)
    lanes.reset()
    away_s = []
    for _ in range(3):
        down_at = clock.now
        actions = {"": np.zeros(2, np.int64)}
        step = lanes.step(actions)
        assert step.discards[0].lane == 0
        while not lanes._live[0]:
            clock.now += 0.25
            step = lanes.step(actions)
            assert step.valid is not None
            assert step.valid.tolist() == [False, True]
        away_s.append(clock.now - down_at)
    assert away_s == [1.0, 2.0, 4.0]


def test_filler_rows_hold_observations_that_are_safe_to_act_on() -> None:
    clock = Clock()
    config = EnvironmentConfig(id="environments:SpaceEnv", kwargs={"kind": "discrete_start"})
    lanes = make_lanes(config, num_lanes=2, restart_backoff_s=1.0, clock=clock)
    lanes.reset()
    _replace_step(lanes, 1, _raise)
    step = lanes.step({"": np.ones(2, np.int64)})
    assert step.valid is not None
    assert step.valid.tolist() == [True, False]
    assert environments.SPACES["discrete_start"][0].contains(step.observation[""][1])


def test_a_bad_first_observation_is_refused_before_anyone_acts_on_it() -> None:
    environments_of_lanes.BrokenOnceEnv.made = 0
    config = EnvironmentConfig(id="environments_of_lanes:BrokenOnceEnv")
    lanes = make_lanes(config, num_lanes=1)
    observation = lanes.reset()
    assert np.all(np.isfinite(observation[""]))
    step = lanes.step({"": np.zeros(1, np.int64)})
    assert step.valid is not None
    assert not step.valid[0]
    assert [(d.reason, d.produced, d.step) for d in step.discards] == [("non_finite", False, 0)]
    assert lanes.step({"": np.zeros(1, np.int64)}).valid is None


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("reward_text", "wrong_dtype"),
        ("reward_none", "non_finite"),
        ("reward_array", "wrong_dtype"),
        ("four_values", "fault_raise_step"),
        ("observation_none", "wrong_dtype"),
        ("float64", None),
        ("list", None),
    ],
)
def test_odd_outcomes(outcome: str, reason: str | None) -> None:
    config = EnvironmentConfig(id="environments_of_lanes:ReportingEnv", kwargs={"outcome": outcome})
    lanes = make_lanes(config, num_lanes=1)
    lanes.reset()
    step = lanes.step({"": np.zeros(1, np.int64)})
    assert [discard.reason for discard in step.discards] == ([reason] if reason else [])


def test_values_at_the_limits_pass_and_beyond_them_do_not() -> None:
    config = config_of("CountingEnv", min_length=30, max_length=30)
    for limit, discards in ((29.0, 0), (28.5, 1)):
        lanes = make_lanes(config, num_lanes=4, validation=ValidationConfig(reward_max_abs=limit))
        log = drive(lanes, config, 30)
        assert len(log.discards) == 4 * discards
        assert len(log.transitions) == (0 if discards else 120)
    for limit, discards in ((30.0, 0), (29.5, 1)):
        lanes = make_lanes(config, num_lanes=4, validation=ValidationConfig(observation_max_abs=limit))
        log = drive(lanes, config, 30)
        assert [d.reason for _, d in log.discards] == ["out_of_range"] * 4 * discards


def test_the_space_is_checked_only_if_asked_for() -> None:
    config = config_of("PoisonEnv", kind="outside_space", probability=0.5)
    lanes = make_lanes(config, num_lanes=2, validation=ValidationConfig(check_space=False))
    assert not drive(lanes, config, 50).discards


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_poison_in_a_native_vector(autoreset: str) -> None:
    kwargs = {"env": "PoisonEnv", "autoreset": autoreset, "kind": "nan_reward", "probability": 0.02}
    kwargs["opaque"] = autoreset != "disabled"
    config = EnvironmentConfig(id="vectors:make", vectorization="native", kwargs=kwargs)
    log = drive(make_lanes(config, num_lanes=5), config, 400)
    assert {discard.reason for _, discard in log.discards} == {"non_finite"}
    for transition in log.transitions:
        episode, t = transition.observation[""]
        assert transition.next_observation[""].tolist() == [episode, t + 1]
        assert transition.reward == t
    assert {transition.lane for transition in log.transitions if transition.row > 300} == set(range(5))


def test_a_native_vector_that_breaks_is_made_anew() -> None:
    kwargs = {"env": "CountingEnv", "autoreset": "next_step", "vector_error_at": 20}
    config = EnvironmentConfig(id="vectors:make", vectorization="native", kwargs=kwargs)
    lanes = make_lanes(config, num_lanes=3)
    seeds = set()
    lanes.reset()
    discards = []
    for step in steps_of(lanes, config, 70):
        seeds.add(int(lanes.lane_seed[0]))
        discards += step.discards
    assert len(discards) == 3 * 3
    assert {d.reason for d in discards} == {"fault_raise_step"}
    assert len(seeds) == 4


def test_the_heartbeat_tells_how_long_an_environment_has_been_at_it() -> None:
    clock = Clock()
    config = EnvironmentConfig(id="environments_of_lanes:WaitingEnv")
    lanes = make_lanes(config, num_lanes=1, clock=clock)
    lanes.reset()
    assert lanes.heartbeat is None
    environments_of_lanes.STEPPING.clear()
    environments_of_lanes.GO_ON.clear()
    stepping = threading.Thread(target=lanes.step, args=({"": np.zeros(1, np.int64)},))
    stepping.start()
    try:
        assert environments_of_lanes.STEPPING.wait(30)
        began = lanes.heartbeat
        clock.now += 5
        assert began is not None
        assert lanes.heartbeat == began
        assert clock.now - began == 5
    finally:
        environments_of_lanes.GO_ON.set()
        stepping.join(30)
    assert lanes.heartbeat is None


def _raise(_: Any) -> Any:
    raise RuntimeError("simulator error in step")


def _replace_step(lanes: Lanes, lane: int, step: Any) -> None:
    lanes._backend._steps[lane] = step  # type: ignore[attr-defined]


def _keep_alive(lanes: Lanes, *, lane: int) -> None:
    """Make one lane of a FaultyEnv a healthy one."""
    start = lanes._backend.start

    def healthy(seeds: Any) -> Any:
        report = start(seeds)
        environment = lanes._backend._environments[lane]  # type: ignore[attr-defined]
        environment._fault, environment._length = "", 10_000
        return report

    lanes._backend.start = healthy  # type: ignore[method-assign]
