"""A real sampler process between a real parameter server and a learner's door that the test holds."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.rollout import SamplerProcess, make_config
from headrace.types import BEHAVIOR_LOG_PROB, VALUE, Fragment

DEADLINE_S = 60.0


@pytest.fixture
def sampler() -> Iterator[SamplerProcess]:
    with SamplerProcess(make_config("CartPole-v1")) as process:
        yield process


def fragments(sampler: SamplerProcess) -> Iterator[Fragment]:
    """Fragments as they come; stops the test if none comes."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        yield from sampler.take(1.0)
    pytest.fail("no fragment came in time")


@pytest.mark.slow
def test_zero_parameters_are_acted_with_from_the_next_fragment_on_and_said_so(
    sampler: SamplerProcess,
) -> None:
    first = next(fragments(sampler))
    assert np.abs(first.columns[VALUE]).max() > 0

    zeros = sampler.publish({name: np.zeros_like(array) for name, array in sampler.parameters.items()})

    for fragment in fragments(sampler):
        acted_with_zeros = not fragment.columns[VALUE].any()
        assert acted_with_zeros == (fragment.policy_version == zeros), "the version on a fragment is not true"
        if acted_with_zeros:
            np.testing.assert_allclose(fragment.columns[BEHAVIOR_LOG_PROB], np.log(0.5), rtol=1e-6)
            return
