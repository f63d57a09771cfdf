"""Seeds are distinct over samplers, lanes, incarnations and rebuilds, and come back with the run's seed."""

from __future__ import annotations

import numpy as np
import pytest
from lane_driver import make_lanes, steps_of

from headrace.config.sections import EnvironmentConfig

CONFIG = EnvironmentConfig(id="environments:SpaceEnv", kwargs={"kind": "vector_discrete"})


def first_observations(seed: int, sampler: int, incarnation: int, num_lanes: int = 8) -> list[bytes]:
    lanes = make_lanes(CONFIG, num_lanes=num_lanes, seed=seed, spawn_key=(sampler, incarnation))
    observation = lanes.reset()[""]
    rows = [row.tobytes() for row in observation]
    lanes.close()
    return rows


def test_all_first_observations_are_distinct() -> None:
    rows = [row for sampler in range(4) for row in first_observations(1, sampler, 0)]
    assert len(set(rows)) == 4 * 8


def test_the_runs_seed_brings_them_back() -> None:
    assert first_observations(5, 2, 0) == first_observations(5, 2, 0)
    assert set(first_observations(5, 2, 0)).isdisjoint(first_observations(6, 2, 0))


def test_a_new_incarnation_does_not_replay_the_old_stream() -> None:
    assert set(first_observations(5, 2, 0)).isdisjoint(first_observations(5, 2, 1))


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_whole_stream_comes_back_whoever_steps_it(vectorization: str) -> None:
    streams = []
    for mode in ("sync", vectorization):
        config = EnvironmentConfig(id="environments:CountingEnv", vectorization=mode, workers=2)
        lanes = make_lanes(config, num_lanes=3, seed=9)
        lanes.reset()
        streams.append([step.observation[""].copy() for step in steps_of(lanes, config, 200)])
        lanes.close()
    np.testing.assert_array_equal(*streams)


def test_later_episodes_are_not_seeded_again() -> None:
    lanes = make_lanes(CONFIG, num_lanes=1)
    firsts = [lanes.reset()[""].tobytes()]
    firsts += [step.observation[""].tobytes() for step in steps_of(lanes, CONFIG, 100) if step.episodes]
    assert len(set(firsts)) == 6
    assert lanes.lane_episode.tolist() == [5]


def test_a_rebuilt_environment_gets_a_fresh_seed() -> None:
    config = EnvironmentConfig(
        id="environments:FaultyEnv", kwargs={"kind": "raise_step", "probability": 0.05}
    )
    lanes = make_lanes(config, num_lanes=2)
    lanes.reset()
    seeds = {int(seed) for seed in lanes.lane_seed}
    restarts = 0
    for _ in steps_of(lanes, config, 200):
        seeds |= {int(seed) for seed in lanes.lane_seed}
        restarts = lanes.restarts.total()
    assert restarts > 3
    assert len(seeds) == 2 + restarts


def test_envpool_sized_seeds_fit_into_31_bits() -> None:
    lanes = make_lanes(CONFIG, num_lanes=64)
    lanes.reset()
    assert np.all(lanes.lane_seed >= 0)
    assert np.all(lanes.lane_seed < 2**31)
    assert len(set(lanes.lane_seed.tolist())) == 64
