"""One key moves a run between the ways in which learners work together."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from local_run import read_events, small_document, train

UPDATES = 12
A2C = {"name": "a2c", "batch_steps": 64}
PPO = {"name": "ppo", "batch_steps": 64, "minibatch_size": 32, "epochs": 2}


def document(algorithm: dict[str, Any], learners: int, **sync: Any) -> dict[str, Any]:
    sections = {"learner": {"count": learners}, "sampler": {"count": learners}, "sync": sync}
    made = small_document(run={"stop": {"updates": UPDATES}}, **sections)
    return {**made, "algorithm": algorithm}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "learners", "sync"),
    [
        (A2C, 2, {"mode": "sync"}),
        (A2C, 2, {"mode": "soft_sync", "max_policy_lag": 2}),
        (A2C, 2, {"mode": "async", "max_policy_lag": 2, "local_steps": 2, "transport_dtype": "bfloat16"}),
        (A2C, 2, {"mode": "all_reduce"}),
        (PPO, 2, {"mode": "sync", "transport_dtype": "float16"}),
        (A2C, 4, {"mode": "sync", "group_size": 2}),
    ],
    ids=["sync", "soft_sync", "async", "all_reduce", "ppo-sync", "groups"],
)
def test_a_run_finishes_balanced_with_every_learner_in_it(
    tmp_path: Path, algorithm: dict[str, Any], learners: int, sync: dict[str, Any]
) -> None:
    run = train(tmp_path, document(algorithm, learners, **sync))
    assert run.exit_code == 0, run.output
    assert run.summary["ledger"]["balanced"] is True
    assert run.summary["ledger"]["trained"] == run.summary["env_steps"]
    joined = Counter(event["learner"] for event in read_events(run.folder, "learner_joined"))
    assert joined == {f"learner-{index}": 1 for index in range(learners)}
    if sync["mode"] == "sync" and "group_size" not in sync:
        assert run.summary["env_steps"] == UPDATES * 64 * learners, "each version takes the work of all"
    groups = {len(event["members"]) for event in read_events(run.folder, "group_formed")}
    expected = learners if sync["mode"] == "all_reduce" else sync.get("group_size")
    assert groups == ({expected} if expected else set())


def test_a_mode_that_makes_no_sense_is_refused_at_start_with_the_reason(tmp_path: Path) -> None:
    run = train(tmp_path, document(PPO, 2, mode="sync", exchange="gradients"))
    assert run.exit_code == 2
    assert "sync.exchange: an update of ppo is many gradient steps" in run.output
