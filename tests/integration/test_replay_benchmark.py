"""The benchmark of the core of replay runs, and reports every operation of Headrace's side."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_times_every_operation_and_says_what_it_could_not_measure(tmp_path: Path) -> None:
    report = tmp_path / "replay.json"
    program = [sys.executable, "-P", "-m", "benchmarks", "replay_core"]
    sizes = ["--items", "1000", "--call", "50", "--calls", "5", "--rounds", "1"]
    done = subprocess.run(
        [*program, *sizes, "--json", str(report)],
        check=True,
        timeout=280,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    written = json.loads(report.read_text())
    assert set(written["rounds"]) == {"headrace", "headrace3", "index"}
    for (times,) in written["rounds"].values():
        assert set(times) == {"add", "sample", "update"}
        assert all(microseconds > 0 for microseconds in times.values())
    assert set(written["missing"]) == {"cpprb", "torchrl", "sb3"}
    assert "there is no --peers-python" in done.stdout
