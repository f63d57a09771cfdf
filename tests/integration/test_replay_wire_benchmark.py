"""The benchmark of replay's wire runs and reports every way, for either workload."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_benchmark_reports_every_way(tmp_path: Path) -> None:
    report = tmp_path / "replay.json"
    program = [sys.executable, "-P", "-m", "benchmarks.replay_wire"]
    subprocess.run(
        [*program, "--rounds", "1", "--seconds", "0.1", "--json", str(report)],
        check=True,
        timeout=280,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    summary = json.loads(report.read_text())
    ways = {
        f"{name} {way}"
        for name in ("small", "image")
        for way in ("local", "draw", "shared", "ahead", "priorities")
    }
    assert set(summary) == ways
    assert all(way["items_per_s"]["min"] > 0 for way in summary.values())
