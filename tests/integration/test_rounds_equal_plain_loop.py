"""A run of one learner through rounds at the parameter server changes no bit of what is learned."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import RoundLearner, make_learned
from local_run import small_document
from paramserving import make_settings, serving

from headrace.testing.plain_loop import PlainLoop
from headrace.types import Array
from services.learner.exchanging import Learned

NUM_UPDATES = 12
SINGLE_STEP = {"batch_steps": 64, "minibatch_size": None, "epochs": None}
EVERYTHING_THAT_HAS_STATE: dict[str, dict[str, Any]] = {
    "policy": {"normalize_observation": True},
    "algorithm": {"normalize_value": True, "learning_rate_schedule": "linear"},
}

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "a2c": {"algorithm": {"name": "a2c", **SINGLE_STEP}, "sync": {"exchange": "gradients"}},
    "a2c_adam_normalized": {
        "policy": EVERYTHING_THAT_HAS_STATE["policy"],
        "algorithm": {
            **EVERYTHING_THAT_HAS_STATE["algorithm"],
            **SINGLE_STEP,
            "name": "a2c",
            "optimizer": "adam",
            "batch_steps": 128,
        },
        "sync": {"exchange": "gradients"},
    },
    "a2c_changes": {"algorithm": {"name": "a2c", **SINGLE_STEP}, "sync": {"exchange": "changes"}},
    "a2c_async": {"algorithm": {"name": "a2c", **SINGLE_STEP}, "sync": {"mode": "async"}},
    "impala": {"algorithm": {"name": "impala", **SINGLE_STEP}, "sync": {"exchange": "gradients"}},
    "ppo": {"sync": {"exchange": "changes"}},
    "ppo_normalized_pendulum": {
        "environment": {"id": "Pendulum-v1"},
        **EVERYTHING_THAT_HAS_STATE,
        "sync": {"exchange": "changes"},
    },
    "ppo_soft_sync": {"sync": {"mode": "soft_sync"}},
}


def sections_of(case: str) -> dict[str, dict[str, Any]]:
    document = small_document(run={"stop": {"updates": NUM_UPDATES}})
    for name, section in CASES[case].items():
        merged = {**document.get(name, {}), **section}
        document[name] = {key: value for key, value in merged.items() if value is not None}
    return document


def assert_same(actual: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_every_version_is_what_the_plain_loop_has_bit_for_bit(case: str, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, **sections_of(case))
    with (
        closing(PlainLoop(settings.config)) as plain,
        closing(PlainLoop(settings.config)) as loop,
        serving(settings) as server,
        closing(RoundLearner(settings, server.server.address, loop.algorithm)) as learner,
    ):
        before = plain.algorithm.acting_parameters()

        def work() -> Learned:
            steps = loop.num_env_steps
            return make_learned(loop.update(), samples=loop.num_env_steps - steps)

        for update in range(NUM_UPDATES):
            metrics = plain.update()
            exchanged = learner.hand_in(work)
            newest = server.core.fetch()
            assert newest is not None
            assert (newest.version, exchanged.version.number) == (exchanged.version, update + 1)
            assert_same(newest.acting.decode(), plain.algorithm.acting_parameters())
            assert_same(loop.algorithm.acting_parameters(), plain.algorithm.acting_parameters())
            assert newest.report.metrics["grad_norm"] == metrics["grad_norm"]
        assert exchanged.status.ended
        assert newest.report.env_steps == plain.num_env_steps
        learned = plain.algorithm.acting_parameters()
        assert any(not np.array_equal(before[name], learned[name]) for name in before)
