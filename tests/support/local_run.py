"""Runs `headrace train` as a person would, in a process of its own, and reads what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SUPPORT = Path(__file__).parent
REPOSITORY = SUPPORT.parents[1]
TIMEOUT_S = 280.0


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Exit code, all output, the run's folder and its summary (empty if none was written)."""

    exit_code: int
    output: str
    folder: Path
    summary: dict[str, Any]


def small_document(**sections: dict[str, Any]) -> dict[str, Any]:
    """A CartPole PPO run that takes a second or two; ``sections`` replace or add keys of a section."""
    document: dict[str, Any] = {
        "run": {"seed": 3, "stop": {"updates": 5}},
        "environment": {"id": "CartPole-v1", "lanes": 4},
        "policy": {"hidden": [16, 16]},
        "algorithm": {"name": "ppo", "batch_steps": 64, "minibatch_size": 32, "epochs": 2},
        "sampler": {"fragment_length": 16},
        "evaluation": {"enabled": False},
        "metrics": {"tensorboard": False, "interval_s": 0.2},
    }
    for name, section in sections.items():
        document[name] = {**document.get(name, {}), **section}
    return document


def command(*arguments: str) -> list[str]:
    """The command line as a list."""
    return [sys.executable, "-P", "-m", "headrace.cli.entry", *arguments]


def environment(first: Path | None = None) -> dict[str, str]:
    """Environment of a started process: ``first``, case environments and the repository can be imported."""
    path = os.pathsep.join([*([] if first is None else [str(first)]), str(SUPPORT), str(REPOSITORY)])
    return {**os.environ, "PYTHONPATH": path}


def write_document(folder: Path, document: dict[str, Any]) -> Path:
    """Write a configuration into ``folder``."""
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    return path


def train(
    tmp_path: Path, document: dict[str, Any], *arguments: str, python_path: Path | None = None
) -> FinishedRun:
    """Train to the end in ``tmp_path/run``. Fails the test if it hangs."""
    folder = tmp_path / "run"
    started = command("train", str(write_document(tmp_path, document)), "--run-dir", str(folder), *arguments)
    return finish(started, folder, python_path=python_path)


def finish(started: list[str], folder: Path, *, python_path: Path | None = None) -> FinishedRun:
    """Run a command that works on ``folder`` to its end. ``python_path``: a folder to import from first."""
    done = subprocess.run(
        started, env=environment(python_path), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return FinishedRun(done.returncode, done.stdout + done.stderr, folder, read_summary(folder))


def read_summary(folder: Path) -> dict[str, Any]:
    """``summary.json`` of a run, empty if there is none."""
    path = folder / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return summary


def read_events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Events of one kind."""
    path = folder / "events.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["kind"] == kind]
