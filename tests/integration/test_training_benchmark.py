"""The benchmark of training runs and reports every part; its instruments measure what they say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.slowing import Slowed
from benchmarks.training_staleness import Cell, train
from benchmarks.wire_bytes import traffic

ROOT = Path(__file__).parents[2]
SENT_BYTES = 100_000


@pytest.mark.slow
def test_the_benchmark_reports_every_part_and_draws_it(tmp_path: Path) -> None:
    report = tmp_path / "training.json"
    program = [sys.executable, "-P", "-m", "benchmarks.training", "--quick"]
    subprocess.run(
        [*program, "--json", str(report), "--plots", str(tmp_path)],
        check=True,
        timeout=280,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    found = json.loads(report.read_text())
    assert list(found) == ["rounds", "bytes", "modes", "staleness"]
    assert {one["mode"] for one in found["rounds"]["sessions"]} == {"sync", "soft_sync", "async"}
    for one in found["bytes"]["traffic"]:
        assert one["up"] + one["down"] + one["peers"] >= one["theory"], "less than must have been sent"
    assert all(run["balanced"] and run["outcomes"] for run in found["modes"]["runs"])
    assert {one["lag"] for one in found["staleness"]["trainings"]} == {0, 8, None}
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "modes-cartpole-impala.png",
        "modes-rounds.png",
        "modes-staleness.png",
    ]


def test_learners_in_turns_bring_gradients_of_exactly_their_lag_and_the_same_ones_each_time() -> None:
    cell = Cell(lag=3, rule="in full", seed=1)
    first = train(cell, 128 * 12)
    assert first.gradients == first.versions == 12
    assert first.mean_lag == pytest.approx((0 + 1 + 2 + 9 * 3) / 12), "they begin together"
    assert train(cell, 128 * 12) == first


def test_what_is_dropped_makes_no_version_and_all_older_work_is_dropped() -> None:
    trained = train(Cell(lag=8, rule="dropped beyond 4", seed=1), 128 * 36)
    assert 0.0 < trained.dropped < 1.0
    assert trained.versions == round(trained.gradients * (1.0 - trained.dropped))
    assert trained.mean_lag <= 4.0


def test_traffic_is_what_connections_to_a_port_have_carried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near:
            far, _ = listening.accept()
            with far:
                before = traffic(port)
                near.sendall(bytes(SENT_BYTES))
                left = SENT_BYTES
                while left:
                    left -= len(far.recv(left))
                carried = traffic(port) - before
    assert (carried.peer.sent, carried.peer.received) == (SENT_BYTES, 0)
    assert carried.others.received == SENT_BYTES, "the other end is in this process too"


def test_a_slowed_process_runs_again_afterwards() -> None:
    program = [sys.executable, "-c", "input()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        watched = psutil.Process(process.pid)
        with Slowed(process.pid, 0.2, period_s=0.01):
            while watched.status() != psutil.STATUS_STOPPED:
                assert process.poll() is None
        assert watched.status() != psutil.STATUS_STOPPED
        process.communicate(b"\n")
        assert process.returncode == 0
