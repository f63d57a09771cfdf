"""In lockstep with one sampler, services, streams and settlement change no bit of what is learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_run import small_document, train

from headrace.checkpoint import CheckpointDirectory
from headrace.config.load import load_config
from headrace.testing.plain_loop import PlainLoop

NUM_UPDATES = 20

CASES: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {},
    "ppo_normalized_pendulum": {
        "environment": {"id": "Pendulum-v1"},
        "policy": {"normalize_observation": True},
        "algorithm": {"normalize_value": True, "learning_rate_schedule": "linear"},
    },
    "a2c_two_fragments_an_update": {
        "algorithm": {"name": "a2c", "batch_steps": 128, "minibatch_size": None, "epochs": None}
    },
    "a2c_normalized_gradients_in_rounds": {
        "policy": {"normalize_observation": True},
        "algorithm": {
            "name": "a2c",
            "normalize_value": True,
            "learning_rate_schedule": "linear",
            "minibatch_size": None,
            "epochs": None,
        },
        "sync": {"exchange": "gradients"},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_first_twenty_updates_are_the_same_bits(case: str, tmp_path: Path) -> None:
    document = small_document(
        sync={"max_policy_lag": 0}, paramserver={"checkpoint_every": 1, "keep": NUM_UPDATES + 1}
    )
    document["run"]["stop"] = {"updates": NUM_UPDATES}
    for name, section in CASES[case].items():
        document[name] = {
            key: value for key, value in {**document.get(name, {}), **section}.items() if value is not None
        }

    run = train(tmp_path, document)

    assert run.exit_code == 0, run.output
    checkpoints = CheckpointDirectory(run.folder)
    loop = PlainLoop(load_config(run.folder / "config.yaml"))
    for _ in range(NUM_UPDATES):
        loop.update()
    distributed = checkpoints.load(checkpoints.resolve("latest")).acting.decode()
    plain = loop.algorithm.acting_parameters()
    assert distributed.keys() == plain.keys()
    for name, array in plain.items():
        np.testing.assert_array_equal(distributed[name], array, err_msg=name)
    assert run.summary["updates"] == NUM_UPDATES
    assert run.summary["policy_lag"]["max"] == 0
    loop.close()
