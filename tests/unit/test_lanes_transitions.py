"""No transition crosses an episode, none is missing, none is there twice; whatever runs the lanes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from environments import SPACES
from lane_driver import Log, drive, make_lanes

from headrace.config.sections import EnvironmentConfig, ValidationConfig
from headrace.envs.factory import probe
from headrace.envs.spec import spec_of
from headrace.errors import ConfigurationError

BACKENDS = ["sync", "next_step", "same_step", "disabled"]


def counting(backend: str, end: str, **fields: Any) -> EnvironmentConfig:
    if backend in ("sync", "async"):
        return EnvironmentConfig(
            id="environments:CountingEnv", vectorization=backend, kwargs={"end": end}, **fields
        )
    kwargs = {"env": "CountingEnv", "autoreset": backend, "opaque": backend != "disabled", "end": end}
    return EnvironmentConfig(id="vectors:make", vectorization="native", kwargs=kwargs, **fields)


def check_counting(log: Log, *, end: str) -> None:
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    for transition in log.transitions:
        episode, t = transition.observation[""].astype(int)
        next_episode, next_t = transition.next_observation[""].astype(int)
        assert (next_episode, next_t) == (episode, t + 1)
        assert transition.reward == t
        assert not (transition.terminated and transition.truncated)
        seen[transition.lane, episode].append(t)
        if transition.terminated or transition.truncated:
            assert transition.terminated == (end in ("terminated", "both")) or end == "mixed"
    for steps in seen.values():
        assert steps == list(range(len(steps)))
    assert log.episodes
    for episode_end in log.episodes:
        assert episode_end.return_ == episode_end.length * (episode_end.length - 1) / 2
        assert (episode_end.end == "terminated") == (end in ("terminated", "both")) or end == "mixed"


@pytest.mark.parametrize("num_lanes", [1, 5])
@pytest.mark.parametrize("end", ["terminated", "truncated", "both", "mixed"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_transition_is_whole_and_there_once(backend: str, end: str, num_lanes: int) -> None:
    config = counting(backend, end)
    log = drive(make_lanes(config, num_lanes=num_lanes), config, 300)
    check_counting(log, end=end)
    assert not log.discards


@pytest.mark.parametrize("num_lanes", [1, 5])
def test_the_same_in_worker_processes(num_lanes: int) -> None:
    config = counting("async", "mixed", workers=2)
    log = drive(make_lanes(config, num_lanes=num_lanes), config, 300)
    check_counting(log, end="mixed")
    assert not log.discards


@pytest.mark.parametrize("backend", ["sync", "same_step", "disabled"])
def test_same_step_lanes_waste_no_row(backend: str) -> None:
    config = counting(backend, "mixed")
    log = drive(make_lanes(config, num_lanes=5), config, 100)
    assert np.all(log.valid)


def test_next_step_lanes_are_invalid_exactly_after_an_end() -> None:
    config = counting("next_step", "mixed")
    log = drive(make_lanes(config, num_lanes=5), config, 300)
    ended = {(t.row, t.lane) for t in log.transitions if t.terminated or t.truncated}
    invalid = {(int(row), int(lane)) for row, lane in np.argwhere(~np.array(log.valid))}
    assert invalid == {(row + 1, lane) for row, lane in ended if row + 1 < 300}


@pytest.mark.parametrize("backend", ["sync", "async", "disabled"])
def test_a_step_cap_truncates(backend: str) -> None:
    config = counting(backend, "terminated", max_episode_steps=7)
    log = drive(make_lanes(config, num_lanes=5), config, 300)
    cut = [transition for transition in log.transitions if transition.truncated]
    capped = [episode for episode in log.episodes if episode.end == "capped"]
    assert cut
    assert {episode.length for episode in capped} == {7}
    assert len(cut) == len(capped)
    assert {int(transition.next_observation[""][1]) for transition in cut} == {7}
    assert max(episode.length for episode in log.episodes) == 7


def test_a_native_vector_gets_the_step_cap_or_is_refused() -> None:
    config = EnvironmentConfig(id="CartPole-v1", vectorization="native", max_episode_steps=5)
    log = drive(make_lanes(config, num_lanes=3), config, 50)
    assert {episode.length for episode in log.episodes} == {5}
    assert sum(transition.truncated for transition in log.transitions) == len(log.episodes)
    assert not any(transition.terminated for transition in log.transitions)
    with pytest.raises(ConfigurationError, match=r"environment.max_episode_steps: .* can't cut"):
        probe(counting("next_step", "mixed", max_episode_steps=5))


def test_an_endless_environment_is_cut_at_the_cap_and_not_terminated() -> None:
    config = EnvironmentConfig(id="environments:EndlessEnv", max_episode_steps=10)
    log = drive(make_lanes(config, num_lanes=3), config, 40)
    assert len(log.episodes) == 12
    assert {(e.end, e.length, e.return_) for e in log.episodes} == {("capped", 10, 10.0)}
    assert not any(t.terminated for t in log.transitions)


def test_a_long_tail_of_episodes_is_cut_at_the_cap() -> None:
    config = EnvironmentConfig(id="environments:LongTailEnv", max_episode_steps=60)
    log = drive(make_lanes(config, num_lanes=4), config, 2000)
    assert {episode.length for episode in log.episodes if episode.end == "capped"} == {60}
    assert max(episode.length for episode in log.episodes) == 60


def test_a_termination_at_the_cap_is_a_termination() -> None:
    kwargs = {"min_length": 7, "max_length": 7, "end": "terminated"}
    config = EnvironmentConfig(id="environments:CountingEnv", max_episode_steps=7, kwargs=kwargs)
    log = drive(make_lanes(config, num_lanes=2), config, 50)
    assert {episode.end for episode in log.episodes} == {"terminated"}


@pytest.mark.parametrize("kind", SPACES)
def test_every_space_is_stepped_with_its_own_actions(kind: str) -> None:
    config = EnvironmentConfig(id="environments:SpaceEnv", kwargs={"kind": kind, "length": 5})
    log = drive(make_lanes(config, num_lanes=3), config, 30)
    assert not log.discards
    assert len(log.transitions) == 90
    space = SPACES[kind][0]
    for transition in log.transitions[:10]:
        assert space.contains(spec_of(space).unflatten(transition.observation))


@pytest.mark.parametrize("kind", ["dict", "tuple", "nested"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_nested_spaces_through_a_native_vector(kind: str, autoreset: str) -> None:
    kwargs = {"env": "SpaceEnv", "autoreset": autoreset, "kind": kind, "length": 5}
    config = EnvironmentConfig(id="vectors:make", vectorization="native", kwargs=kwargs)
    log = drive(make_lanes(config, num_lanes=3), config, 30)
    assert not log.discards
    assert {episode.length for episode in log.episodes} == {5}


def test_nested_spaces_through_worker_processes() -> None:
    config = EnvironmentConfig(id="environments:SpaceEnv", vectorization="async", kwargs={"length": 5})
    log = drive(make_lanes(config, num_lanes=3), config, 30)
    assert not log.discards
    assert len(log.transitions) == 90


def test_a_second_reset_begins_new_episodes() -> None:
    config = counting("sync", "mixed")
    lanes = make_lanes(config, num_lanes=3)
    lanes.reset()
    lanes.step({"": np.zeros(3, np.int64)})
    observation = lanes.reset()[""]
    assert observation[:, 1].tolist() == [0, 0, 0]
    assert lanes.lane_step.tolist() == [0, 0, 0]
    lanes.close()


def test_an_environment_cannot_change_the_callers_actions() -> None:
    config = EnvironmentConfig(id="environments_of_lanes:GreedyEnv")
    lanes = make_lanes(config, num_lanes=2, validation=ValidationConfig())
    lanes.reset()
    actions = np.ones((2, 2), np.float32)
    lanes.step({"": actions})
    assert actions.tolist() == [[1, 1], [1, 1]]


def test_info_is_not_kept() -> None:
    import environments_of_lanes

    config = EnvironmentConfig(id="environments_of_lanes:TracedInfoEnv")
    lanes = make_lanes(config, num_lanes=2)
    lanes.reset()
    for _ in range(20):
        lanes.step({"": np.zeros(2, np.int64)})
        assert len(environments_of_lanes.ALIVE) <= 1
