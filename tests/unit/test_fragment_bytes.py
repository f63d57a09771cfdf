"""What a fragment may take is known before the first is made, and the buffer must hold a batch of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.config.checks import check_with_spaces, fragment_bytes
from headrace.config.choices import is_off_policy
from headrace.config.load import config_from_document
from headrace.config.sections import Config, EnvironmentConfig
from headrace.envs.factory import probe
from headrace.envs.lanes import Lanes
from headrace.envs.spec import EnvironmentSpec
from headrace.errors import ConfigurationError
from headrace.nets.actor import make_actor
from headrace.rl.algorithm import make_algorithm, make_replay_algorithm
from headrace.rollout import Rollout
from headrace.types import PolicyVersion, SamplerIdentity


def configure(environment: EnvironmentConfig, **sections: dict[str, Any]) -> Config:
    document = {
        "run": {"stop": {"updates": 1}},
        "environment": environment.model_dump(),
        "algorithm": {"name": "a2c", "batch_steps": 320},
        "sampler": {"fragment_length": 16},
        "policy": {"normalize_observation": True},
    }
    return config_from_document({**document, **sections})


def first_fragment_bytes(config: Config, spec: EnvironmentSpec) -> int:
    lanes = Lanes(
        config.environment,
        config.validation,
        spec=spec,
        num_lanes=config.environment.lanes,
        seed_sequence=np.random.SeedSequence(3),
    )
    actor = make_actor(config, spec)
    make = make_replay_algorithm if is_off_policy(config) else make_algorithm
    actor.load(make(config, spec).acting_parameters())
    rollout = Rollout(
        lanes=lanes,
        actor=actor,
        spec=spec,
        sampler=SamplerIdentity("sampler-0", 0),
        fragment_length=config.sampler.fragment_length,
        config_digest="",
        rng=np.random.default_rng(3),
        normalize_observation=config.policy.normalize_observation,
    )
    fragment = rollout.run(PolicyVersion(1, 0))
    lanes.close()
    assert fragment is not None
    return fragment.nbytes


@pytest.mark.parametrize("kind", ["vector_discrete", "vector_continuous", "dict", "nested", "multi_discrete"])
def test_a_fragment_fits_its_estimate(case: Callable[..., EnvironmentConfig], kind: str) -> None:
    config = configure(case("SpaceEnv", lanes=20, kwargs={"kind": kind, "length": 5}))
    spec = probe(config.environment)
    actual, estimate = first_fragment_bytes(config, spec), fragment_bytes(config, spec)
    assert 0.8 * estimate < actual <= estimate


def test_so_does_one_that_says_what_its_actions_are_worth(case: Callable[..., EnvironmentConfig]) -> None:
    environment = case("SpaceEnv", lanes=20, kwargs={"kind": "vector_discrete", "length": 5})
    config = configure(environment, algorithm={"name": "dqn"}, policy={})
    spec = probe(config.environment)
    actual, estimate = first_fragment_bytes(config, spec), fragment_bytes(config, spec)
    assert 0.8 * estimate < actual <= estimate


def test_the_least_capacity_is_named_and_works(case: Callable[..., EnvironmentConfig]) -> None:
    environment = case("SpaceEnv", lanes=20, kwargs={"kind": "image_discrete"})
    spec = probe(environment)
    with pytest.raises(ConfigurationError, match=r"stream\.capacity_bytes: 65536 is too small") as caught:
        check_with_spaces(configure(environment, stream={"capacity_bytes": 2**16}), spec)
    least = int(str(caught.value).rstrip(".").split()[-1])
    check_with_spaces(configure(environment, stream={"capacity_bytes": least}), spec)
    with pytest.raises(ConfigurationError):
        check_with_spaces(configure(environment, stream={"capacity_bytes": least - 1}), spec)
