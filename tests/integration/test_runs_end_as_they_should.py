"""Real runs: how they end, what they leave, and that they go on where they stopped."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_run import LiveRun
from local_run import FinishedRun, command, finish, read_events, small_document, train

from headrace.accounts import read_accounts
from headrace.checkpoint import CheckpointDirectory

pytestmark = pytest.mark.slow


def case_document(name: str, kwargs: dict[str, Any], **sections: dict[str, Any]) -> dict[str, Any]:
    environment = {"id": f"environments:{name}", "kwargs": kwargs, **sections.pop("environment", {})}
    return small_document(environment=environment, **sections)


def check_settled(run: FinishedRun) -> None:
    """A run in order: exit 0, its ledger balanced, every transition it says it trained on accounted."""
    assert run.exit_code == 0, run.output
    assert run.summary["ledger"]["balanced"] is True
    assert run.summary["ledger"]["trained"] == run.summary["env_steps"]


@pytest.mark.parametrize("kind", ["nested", "image_discrete"])
def test_any_space_trains_saves_and_is_evaluated(kind: str, tmp_path: Path) -> None:
    document = case_document("SpaceEnv", {"kind": kind})
    document["run"]["stop"] = {"updates": 2}

    run = train(tmp_path, document)
    check_settled(run)

    evaluated = finish(
        command("eval", str(run.folder), "--checkpoint", "latest", "--episodes", "3"), run.folder
    )
    assert evaluated.exit_code == 0, evaluated.output
    assert "20" in evaluated.output, "every episode of SpaceEnv returns 20"


def test_poison_is_refused_counted_and_traced(tmp_path: Path) -> None:
    document = case_document("PoisonEnv", {"kind": "nan_reward", "probability": 0.01})
    document["run"]["stop"] = {"updates": 30}

    run = train(tmp_path, document)

    check_settled(run)
    assert run.summary["ledger"]["dropped"]["non_finite"] > 0
    assert run.summary["quarantined"] > 0
    sample = json.loads(next((run.folder / "quarantine").glob("*.json")).read_text("utf-8"))
    assert sample["reason"] == "non_finite"
    assert set(sample["provenance"]) >= {"sampler", "incarnation", "environment", "seed", "episode", "step"}
    acting = CheckpointDirectory(run.folder)
    parameters = acting.load(acting.resolve("latest")).acting.decode()
    assert all(np.isfinite(array).all() for array in parameters.values())


def test_an_environment_that_always_fails_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    run = train(tmp_path, case_document("FaultyEnv", {"kind": "raise_always"}))

    assert run.exit_code == 1
    assert run.summary["status"] == "failed"
    assert "simulator error in step" in run.summary["reason"]
    assert "simulator error in step" in run.output.strip().splitlines()[-1]


@pytest.mark.parametrize("kind", ["hang", "exit"])
def test_a_worker_that_hangs_or_dies_costs_its_own_episodes(kind: str, tmp_path: Path) -> None:
    document = case_document(
        "FaultyEnv",
        {"kind": kind, "probability": 0.002},
        environment={"vectorization": "async", "workers": 2, "step_timeout_s": 1.0},
    )
    document["run"]["stop"] = {"updates": 25}

    run = train(tmp_path, document)

    check_settled(run)
    assert run.summary["restarts"]["sampler"] == 0
    assert run.summary["ledger"]["dropped"][f"fault_{kind}"] >= 0
    assert read_events(run.folder, "quarantine")


def test_a_hang_inside_the_sampler_ends_it_and_a_new_incarnation_goes_on(tmp_path: Path) -> None:
    document = case_document(
        "FaultyEnv", {"kind": "hang", "probability": 0.0005}, environment={"step_timeout_s": 1.0}
    )
    document["run"]["stop"] = {"updates": 60}
    document["restart"] = {"max_restarts": 100, "backoff_s": 0.0}

    run = train(tmp_path, document)

    check_settled(run)
    assert run.summary["restarts"]["sampler"] >= 1
    assert read_events(run.folder, "environment_hung")


def test_sigterm_to_a_sampler_under_load_loses_nothing(tmp_path: Path) -> None:
    document = small_document()
    document["run"]["stop"] = {"updates": 400}
    with LiveRun(tmp_path, document) as run:
        run.wait_until(lambda: run.updates() >= 5, "update 5")
        run.kill("sampler-0", signal.SIGTERM)
        finished = run.finish()

    check_settled(finished)
    assert finished.summary["ledger"]["lost"] == {}
    first, second = read_accounts(finished.folder)
    assert first.state == "drained"
    assert (first.sampler.incarnation, second.sampler.incarnation) == (0, 1)
