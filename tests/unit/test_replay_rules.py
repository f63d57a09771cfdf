"""Replay settings under which a run would wait for ever are refused before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.checks import check, check_with_spaces, fragment_bytes
from headrace.config.sections import Config
from headrace.envs.factory import probe
from headrace.errors import ConfigurationError


def configure(algorithm: str = "dqn", **replay: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"stop": {"updates": 10}},
            "environment": {"id": "CartPole-v1", "lanes": 2},
            "sampler": {"count": 2, "fragment_length": 8},
            "algorithm": {"name": algorithm},
            "replay": replay,
        }
    )


def test_items_that_leave_before_they_were_learned_from_often_enough_are_refused() -> None:
    (problem,) = check(configure(samples_per_insert=4.5, max_times_sampled=4))
    assert problem.sentence.startswith("replay.max_times_sampled:")
    assert problem.sentence.endswith("the least is 5.")
    assert {"replay.max_times_sampled", "replay.samples_per_insert"} <= problem.reads
    assert check(configure(samples_per_insert=4.5, max_times_sampled=5)) == []


def test_the_hot_tiers_must_hold_what_is_waited_for_and_the_least_that_works_is_named() -> None:
    config = configure(hot_capacity_bytes=2**16, min_size_to_sample=10_000)
    spec = probe(config.environment)
    with pytest.raises(ConfigurationError, match=r"replay\.min_size_to_sample: 10000 .* never") as refused:
        check_with_spaces(config, spec)
    least = int(str(refused.value).removesuffix(".").split()[-1])
    check_with_spaces(configure(hot_capacity_bytes=least, min_size_to_sample=10_000), spec)
    with pytest.raises(ConfigurationError):
        check_with_spaces(configure(hot_capacity_bytes=least - 1, min_size_to_sample=10_000), spec)


@pytest.mark.parametrize(("cold", "counts"), [("required", True), ("auto", False), ("off", False)])
def test_the_cold_tier_counts_where_a_run_cannot_be_without_it(cold: str, counts: bool) -> None:
    config = configure(hot_capacity_bytes=2**16, min_size_to_sample=10_000, cold=cold)
    spec = probe(config.environment)
    assert config.replay.cold_capacity_bytes > 10_000 * fragment_bytes(config, spec) // 16
    if counts:
        check_with_spaces(config, spec)
        return
    with pytest.raises(ConfigurationError):
        check_with_spaces(config, spec)


@pytest.mark.parametrize("remover", ["lifo", "uniform", "prioritized"])
def test_removers_that_the_cold_tier_does_not_know_are_refused_beside_it(remover: str) -> None:
    (problem,) = check(configure(remover=remover, cold="auto"))
    assert problem.sentence.startswith(f"replay.remover: {remover} is for the hot tier alone")
    assert check(configure(remover=remover, cold="off")) == []


def test_replay_settings_do_not_matter_to_algorithms_without_replay() -> None:
    config = configure("ppo", samples_per_insert=4.5, max_times_sampled=4, min_size_to_sample=10**9)
    assert check(config) == []
    check_with_spaces(config, probe(config.environment))
