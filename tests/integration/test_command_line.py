"""The command line as people run it: exit codes, sentences on stderr, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEADRACE = Path(sys.executable).with_name("headrace")
CARTPOLE = Path(__file__).parents[2] / "configs" / "cartpole-ppo.yaml"


def _headrace(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HEADRACE), *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_help_names_every_command(tmp_path: Path) -> None:
    result = _headrace("--help", cwd=tmp_path)
    assert result.returncode == 0
    for command in ("train", "eval", "record", "plot", "top", "ledger", "trace", "config", "bench"):
        assert command in result.stdout


def test_bench_lists_the_benchmarks_and_hands_their_arguments_on(tmp_path: Path) -> None:
    listed = _headrace("bench", cwd=tmp_path)
    assert listed.returncode == 0
    assert "parameters" in listed.stdout
    helped = _headrace("bench", "parameters", "--", "--help", cwd=tmp_path)
    assert helped.returncode == 0
    assert "--watchers" in helped.stdout
    assert _headrace("bench", "nonsense", cwd=tmp_path).returncode == 2


def test_help_does_not_load_what_training_needs(tmp_path: Path) -> None:
    heavy = ("torch", "grpc", "gymnasium", "matplotlib")
    code = f"import sys, headrace.cli.main; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "No such command"),
        (["train"], "CONFIG: "),
        (["train", "missing.yaml"], "missing.yaml"),
        (["train", str(CARTPOLE), "algorithm.gama=0.9", "run.sed=2"], "`algorithm.gamma`"),
        (["train", "--resume", "nowhere"], "--resume: there is no folder nowhere"),
        (["eval", "nowhere"], "nowhere"),
        (["ledger", "nowhere"], "RUN: there is no folder nowhere"),
        (["plot", "nowhere"], "RUN: there is no folder nowhere"),
        (["plot", "."], "RUN: . isn't the folder of a run (it has no config.yaml and no run.json)"),
        (["top", str(CARTPOLE)], "is a file; give the folder of a run"),
        (["eval", "."], "RUN: . isn't the folder of a run"),
        (["train", "--resume", "."], "--resume: . isn't the folder of a run"),
        (["train", str(CARTPOLE), "--run-dir", str(CARTPOLE.parent)], "and it isn't the folder of a run"),
        (["record", "nowhere", "--out", "film.avi"], "--out: film.avi must end with .gif or .mp4"),
    ],
)
def test_usage_errors_are_exit_code_2_in_words(tmp_path: Path, arguments: list[str], words: str) -> None:
    result = _headrace(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "runs").exists()


def test_each_problem_has_its_own_line(tmp_path: Path) -> None:
    result = _headrace("train", str(CARTPOLE), "algorithm.gama=0.9", "run.sed=2", cwd=tmp_path)
    starts = sorted(line.split(":")[0] for line in result.stderr.splitlines())
    assert starts == ["algorithm.gama", "run.sed"]


def test_an_unknown_environment_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    result = _headrace("train", str(CARTPOLE), "environment.id=CartPol-v1", cwd=tmp_path)
    assert result.returncode == 2
    assert "did you mean 'CartPole-v1'?" in result.stderr
    assert list(tmp_path.iterdir()) == []
