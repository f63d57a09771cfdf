"""summary.json and metrics.jsonl: the keys that people's scripts rely on, whatever happened to the run."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.config.sections import Config
from headrace.flow.ledger import build_ledger
from headrace.local.collector import Collector
from headrace.local.row import last_row, read_rows
from headrace.local.run_folder import RunFolder, create
from headrace.local.summary import Outcome, build_summary, read_summary, write_summary
from headrace.types import Evaluation, PolicyVersion, RunStatus, RunView, TrainingReport

CONTRACT = {
    "run_id": None,
    "config_digest": None,
    "status": None,
    "reason": None,
    "wall_s": None,
    "env_steps": None,
    "env_steps_per_s": None,
    "updates": None,
    "samples_trained": None,
    "return": {"mean", "std", "episodes", "best_eval", "reached_at_env_steps", "reached_at_s"},
    "policy_lag": {"p50", "p95", "max"},
    "learner": {"wait_share"},
    "sampler": {"throttled_share"},
    "ledger": {"produced", "trained", "stored", "dropped", "in_flight", "lost", "balanced"},
    "restarts": None,
    "quarantined": None,
    "cold_tier": None,
    "peak_rss_bytes": None,
}


def _view(number: int = 5, best: float | None = None, **report: Any) -> RunView:
    values: dict[str, Any] = {
        "env_steps": 100 * number,
        "updates": number,
        "samples_trained": 400 * number,
        "episodes": 7,
        "episode_return_mean": 20.0,
        "episode_return_std": 1.0,
        "metrics": {"policy_loss": 0.5, "broken": float("nan")},
        "policy_lags": (0, 1),
        **report,
    }
    evaluation = None if best is None else Evaluation(PolicyVersion(1, 4), best, 0.0, 10, env_steps=400)
    status = RunStatus("running", "", PolicyVersion(1, number))
    return RunView(status, TrainingReport(**values), (), evaluation)


def _collector(tmp_path: Path, view: RunView | None, **fields: Any) -> Collector:
    now = [0.0]
    settings: dict[str, Any] = {"target_return": None, "evaluated": True, "with_workers": False, **fields}
    collector = Collector(tmp_path, "127.0.0.1", lambda: view, clock=lambda: now[0], **settings)
    now[0] = 10.0
    return collector


def _summary(collector: Collector, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    return build_summary(
        run_id="run",
        config_digest="digest",
        outcome=Outcome("finished", "run.stop.updates"),
        collector=collector,
        ledger=build_ledger([], [], run_over=True).totals(),
        restarts={"sampler": 1, "learner": 0},
        quarantined=2,
        earlier=earlier or {},
    )


@pytest.mark.parametrize("view", [None, _view(best=50.0)])
def test_every_key_of_the_contract_is_there_also_when_nothing_was_learned(
    tmp_path: Path, view: RunView | None
) -> None:
    collector = _collector(tmp_path, view)
    collector.collect()
    summary = _summary(collector)
    for key, inner in CONTRACT.items():
        assert key in summary
        assert inner is None or inner <= set(summary[key]), key
    json.dumps(summary, allow_nan=False)


def test_numbers_are_those_of_the_newest_version(tmp_path: Path) -> None:
    collector = _collector(tmp_path, _view(best=50.0))
    collector.collect()
    summary = _summary(collector)
    assert (summary["env_steps"], summary["updates"], summary["samples_trained"]) == (500, 5, 2000)
    assert summary["env_steps_per_s"] == 50.0
    assert summary["return"]["best_eval"] == 50.0
    assert summary["peak_rss_bytes"]["launcher"] > 0


def test_the_target_is_reached_by_an_evaluation_at_its_own_env_steps(tmp_path: Path) -> None:
    collector = _collector(tmp_path, _view(best=50.0), target_return=50.0)
    collector.collect()
    assert _summary(collector)["return"]["reached_at_env_steps"] == 400
    missed = _collector(tmp_path, _view(best=49.0), target_return=50.0)
    missed.collect()
    assert _summary(missed)["return"]["reached_at_env_steps"] is None


def test_without_evaluations_the_training_return_counts(tmp_path: Path) -> None:
    collector = _collector(tmp_path, _view(), target_return=20.0, evaluated=False)
    collector.collect()
    assert _summary(collector)["return"]["reached_at_env_steps"] == 500


def test_restarts_and_memory_peaks_of_earlier_starts_count(tmp_path: Path) -> None:
    collector = _collector(tmp_path, _view())
    collector.collect()
    earlier = {"restarts": {"sampler": 2, "evaluator": 1}, "peak_rss_bytes": {"launcher": 2**60}}
    summary = _summary(collector, earlier)
    assert summary["restarts"] == {"sampler": 3, "learner": 0, "evaluator": 1}
    assert summary["peak_rss_bytes"]["launcher"] == 2**60


def test_counters_of_a_resumed_run_never_fall_back(tmp_path: Path) -> None:
    earlier = {"wall_s": 60.0, "env_steps": 900, "updates": 9, "episodes": 3, "policy_version": 9}
    row = _collector(tmp_path, None, earlier=earlier).collect()
    assert (row.env_steps, row.updates, row.episodes, row.policy_version) == (900, 9, 3, 9)
    assert row.wall_s == 70.0


def test_a_row_is_strict_json_also_with_nan_in_it(tmp_path: Path) -> None:
    row = _collector(tmp_path, _view()).collect()
    path = tmp_path / "metrics.jsonl"
    path.write_text(row.to_json() + "\n" + '{"torn": ')
    (read,) = read_rows(path)
    assert read["losses"] == {"policy_loss": 0.5, "broken": None}
    assert read["policy_lag_mean"] == 0.5
    assert last_row(path) == read


def test_an_unreachable_paramserver_leaves_the_last_state(tmp_path: Path) -> None:
    views = [_view(5), None]
    collector = Collector(
        tmp_path, "127.0.0.1", lambda: views.pop(0), target_return=None, evaluated=True, with_workers=False
    )
    collector.collect()
    assert collector.collect().env_steps == 500


def test_the_summary_is_replaced_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = Config.model_validate({"environment": {"id": "CartPole-v1"}, "run": {"stop": {"updates": 1}}})
    create(folder, config, datetime(2026, 1, 1))
    assert read_summary(folder) == {}
    write_summary(folder, {"status": "failed"})
    write_summary(folder, {"status": "finished"})
    assert read_summary(folder) == {"status": "finished"}
    assert [path.name for path in folder.path.glob("*summary*")] == ["summary.json"]


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("interrupted", 0), ("failed", 1)])
def test_exit_codes(status: str, code: int) -> None:
    assert Outcome(status, "because").exit_code == code
