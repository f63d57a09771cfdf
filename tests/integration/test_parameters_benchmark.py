"""The benchmark of parameters runs and reports every figure that has a target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_benchmark_reports_latency_directly_and_over_a_relay_and_the_cost_of_a_crowd(
    tmp_path: Path,
) -> None:
    report = tmp_path / "parameters.json"
    subprocess.run(
        [sys.executable, "-P", "-m", "benchmarks.parameters", "--quick", "--json", str(report)],
        check=True,
        timeout=280,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    found = json.loads(report.read_text())
    assert [latency["relays"] for latency in found["latency"]] == [0, 1]
    assert all(0 < latency["all_p50_ms"] <= latency["all_p99_ms"] for latency in found["latency"])
    crowd = found["crowd"]
    assert len(crowd["all_s"]) == crowd["versions"]
    assert crowd["peak_bytes"] >= crowd["relay_bytes"] > 0
