"""``headrace eval``, ``record``, ``plot``, ``top``, ``ledger``, ``trace`` on a run that was trained."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from local_run import command, environment, small_document, train


def _headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    finished = train(tmp_path_factory.mktemp("trained"), small_document())
    assert finished.exit_code == 0, finished.output
    return finished.folder


@pytest.mark.slow
def test_eval_is_reproducible_by_its_seed(run: Path) -> None:
    once, again, other = (_headrace("eval", str(run), "--episodes", "7", "--seed", seed) for seed in "112")
    assert once.returncode == 0, once.stderr
    assert re.search(r"mean return \d+\.\d+, standard deviation \d+\.\d+, 7 episodes", once.stdout)
    assert once.stdout == again.stdout
    assert once.stdout != other.stdout


@pytest.mark.slow
def test_eval_of_a_checkpoint_that_is_not_there_names_those_that_are(run: Path) -> None:
    result = _headrace("eval", str(run), "--checkpoint", "123456")
    assert result.returncode == 2
    assert "--checkpoint: no checkpoint '123456'" in result.stderr
    assert "there is: latest, " in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_film_has_frames(run: Path, tmp_path: Path) -> None:
    result = _headrace("record", str(run), "--out", str(tmp_path / "film.gif"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "film.gif").read_bytes().startswith(b"GIF8")


@pytest.mark.slow
def test_several_runs_make_one_picture(run: Path, tmp_path: Path) -> None:
    result = _headrace("plot", str(run), str(run), "--out", str(tmp_path / "curves.png"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_picture_of_several_runs_leaves_their_own_alone_and_says_where_it_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    (run / "plots" / "learning_curve.png").write_text("mine")
    monkeypatch.chdir(tmp_path)
    result = _headrace("plot", str(run), str(other))
    assert result.stdout.strip() == f"{run.name}__and__other.png"
    assert (tmp_path / result.stdout.strip()).read_bytes().startswith(b"\x89PNG")
    assert (run / "plots" / "learning_curve.png").read_text() == "mine"


@pytest.mark.slow
def test_a_run_without_returns_is_said_to_have_nothing_to_plot(run: Path, tmp_path: Path) -> None:
    young = tmp_path / "young"
    shutil.copytree(run, young)
    (young / "metrics.jsonl").write_text("")
    alone = _headrace("plot", str(young), "--out", str(tmp_path / "none.png"))
    assert (alone.returncode, alone.stderr) == (0, "")
    assert alone.stdout.strip() == f"{young}: nothing to plot yet, no episode has ended (0 rows of metrics)."
    assert not (tmp_path / "none.png").exists()
    both = _headrace("plot", str(young), str(run), "--out", str(tmp_path / "one.png"))
    assert "nothing to plot yet" in both.stdout
    assert (tmp_path / "one.png").is_file()


@pytest.mark.slow
def test_ledger_and_trace_agree_with_the_summary(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    ledger = json.loads(_headrace("ledger", str(run), "--json").stdout)
    assert {key: ledger[key] for key in summary["ledger"]} == summary["ledger"]
    traced = _headrace("trace", str(run), "sampler-0/0/0")
    assert traced.returncode == 0, traced.stderr
    assert "acted by  policy version" in traced.stdout
    assert traced.stdout.count("from episode 0 step 0") == 4


@pytest.mark.slow
def test_top_shows_a_run_that_is_over(run: Path) -> None:
    result = _headrace("top", str(run), "--once")
    assert result.returncode == 0, result.stderr
    assert "finished (run.stop.updates" in result.stdout
