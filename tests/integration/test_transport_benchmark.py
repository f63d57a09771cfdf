"""The transport benchmark runs and reports every figure that has a target."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_benchmark_reports_every_ratio(tmp_path: Path) -> None:
    report = tmp_path / "transport.json"
    program = [sys.executable, "-P", "-m", "benchmarks.transport"]
    subprocess.run(
        [*program, "--rounds", "1", "--megabytes", "16", "--json", str(report)],
        check=True,
        timeout=280,
        cwd=Path(__file__).parents[2],
        env={"PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    summary = json.loads(report.read_text())
    assert set(summary["ways"]) == {"bare", "stream", "checksum", "shared", "shared4", "copy", "small"}
    assert all(ratio > 0 for ratio in summary["ratios"].values())
    assert all(way["mb_per_s"]["min"] > 0 for way in summary["ways"].values())
