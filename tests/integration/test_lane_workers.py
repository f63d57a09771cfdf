"""Environments in worker processes: hangs, exits, signals, and a parent that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from lane_driver import drive, make_lanes, steps_of

from headrace.config.sections import EnvironmentConfig
from headrace.errors import EnvironmentFaultError

GIVE_UP_S = 30.0


def faulty(kind: str, probability: float, **fields: Any) -> EnvironmentConfig:
    return EnvironmentConfig(
        id="environments:FaultyEnv",
        vectorization="async",
        workers=2,
        kwargs={"kind": kind, "probability": probability},
        **fields,
    )


@pytest.mark.parametrize(
    ("kind", "reason", "timeout_s"), [("exit", "fault_exit", 60.0), ("hang", "fault_hang", 0.5)]
)
def test_only_the_worker_of_the_culprit_is_replaced(kind: str, reason: str, timeout_s: float) -> None:
    config = faulty(kind, 0.004, step_timeout_s=timeout_s)
    lanes = make_lanes(config, num_lanes=4)
    shares = {0: {0, 1}, 1: {0, 1}, 2: {2, 3}, 3: {2, 3}}
    try:
        lanes.reset()
        before = lanes.lane_seed.copy()
        fallen: set[int] = set()
        back: set[int] = set()
        give_up = time.monotonic() + GIVE_UP_S
        for step in steps_of(lanes, config, 10**9):
            assert time.monotonic() < give_up
            valid = np.ones(4, bool) if step.valid is None else step.valid
            if step.discards and not fallen:
                fallen = {discard.lane for discard in step.discards}
                assert {discard.reason for discard in step.discards} == {reason}
                assert not any(discard.produced for discard in step.discards)
                assert fallen == shares[min(fallen)]
                assert np.all(valid[list(set(range(4)) - fallen)])
            back |= {lane for lane in fallen if valid[lane]}
            if fallen and back == fallen:
                break
        assert all(lanes.lane_seed[lane] != before[lane] for lane in fallen)
    finally:
        lanes.close()


def test_the_other_workers_lanes_go_on_while_one_is_replaced() -> None:
    config = faulty("exit", 0.004)
    lanes = make_lanes(config, num_lanes=4)
    log = drive(lanes, config, 400)
    first = log.discards[0][0]
    fallen = {discard.lane for row, discard in log.discards if row == first}
    others = sorted(set(range(4)) - fallen)
    during = [row for row in range(first, 400) if not log.valid[row][min(fallen)]]
    assert len(during) > 5  # starting a process takes far longer than a step
    later = {discard.lane: row for row, discard in reversed(log.discards) if discard.lane in others}
    until = min(later.values(), default=400)
    assert all(np.all(log.valid[row][others]) for row in during if row < until)


def test_a_worker_that_always_exits_ends_with_the_reason() -> None:
    config = faulty("exit", 1.0)
    lanes = make_lanes(config, num_lanes=2, max_consecutive_faults=2)
    try:
        lanes.reset()
        with pytest.raises(EnvironmentFaultError, match=r"fault_exit: .*exit code 3"):
            list(steps_of(lanes, config, 10_000))
    finally:
        lanes.close()


def test_raising_lanes_are_repaired_inside_their_worker() -> None:
    config = faulty("raise_step", 0.01)
    lanes = make_lanes(config, num_lanes=4)
    lanes.reset()
    workers = _workers(os.getpid())
    for _ in steps_of(lanes, config, 300):
        pass
    assert lanes.restarts["fault_raise_step"] > 0
    assert set(lanes.restarts) == {"fault_raise_step"}
    assert _workers(os.getpid()) == workers
    lanes.close()


def test_workers_ignore_ctrl_c() -> None:
    config = EnvironmentConfig(id="environments:CountingEnv", vectorization="async")
    lanes = make_lanes(config, num_lanes=4)
    lanes.reset()
    for pid in _workers(os.getpid()):
        os.kill(pid, signal.SIGINT)
    for step in steps_of(lanes, config, 50):
        assert step.valid is None
    lanes.close()


def test_close_leaves_no_process() -> None:
    config = EnvironmentConfig(id="environments:CountingEnv", vectorization="async")
    lanes = make_lanes(config, num_lanes=4)
    lanes.reset()
    workers = _workers(os.getpid())
    assert len(workers) == 2
    lanes.close()
    assert _gone(workers)


def test_workers_import_nothing_but_environments() -> None:
    config = EnvironmentConfig(id="environments_of_lanes:ModulesEnv", vectorization="async")
    lanes = make_lanes(config, num_lanes=2)
    try:
        assert lanes.reset()[""].tolist() == [[0, 0, 0, 0, 0]] * 2
    finally:
        lanes.close()


@pytest.mark.parametrize("kind", ["none", "hang"])
def test_workers_die_with_a_parent_that_is_killed(kind: str, support_path: Path, tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        f"""
import sys, time
import numpy as np
from lane_driver import make_lanes
from headrace.config.sections import EnvironmentConfig

config = EnvironmentConfig(
    id="environments:FaultyEnv", vectorization="async", kwargs={{"kind": "{kind}", "probability": 1.0}}
)
lanes = make_lanes(config, num_lanes=4)
lanes.reset()
print("ready", flush=True)
if "{kind}" == "hang":
    lanes.step({{"": np.zeros(4, np.int64)}})
time.sleep(600)
"""
    )
    parent = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        workers = _workers(parent.pid)
        assert len(workers) == 2
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
    assert _gone(workers)


def _workers(parent: int) -> set[int]:
    return {
        child.pid for child in psutil.Process(parent).children() if "headrace.envs.worker" in child.cmdline()
    }


def _gone(pids: set[int]) -> bool:
    give_up = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up:
        if not any(_runs(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
