"""A real run with a sampler that is slow, and with one that is killed and does not come back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from live_run import LiveRun
from local_run import read_events

LENGTH = 16


@pytest.mark.slow
def test_a_sampler_that_becomes_slow_is_levelled_and_every_transition_is_accounted_for(
    tmp_path: Path,
) -> None:
    hindered = tmp_path / "hindered"
    kwargs = {"hindered": str(hindered), "step_s": 0.002, "factor": 10.0}
    document = {
        "run": {"stop": {"wall_s": 600}},
        "environment": {"id": "environments:HinderedEnv", "kwargs": kwargs, "lanes": 2},
        "policy": {"hidden": [8]},
        "algorithm": {"name": "a2c", "batch_steps": 2 * 2 * LENGTH},
        "sampler": {"count": 2, "fragment_length": LENGTH, "leveling": "auto"},
        "sync": {"max_policy_lag": 0},
        "evaluation": {"enabled": False},
        "metrics": {"tensorboard": False},
    }

    def quota() -> int:
        """The last one of the hindered sampler."""
        events = read_events(run.folder, "leveling")
        return next((e["quota_steps"] for e in reversed(events) if e["sampler"] == "sampler-1/0"), LENGTH)

    with LiveRun(tmp_path, document) as run:
        run.wait_until(lambda: run.updates() >= 3, "third update")
        partial = hindered.with_suffix(".partial")
        partial.write_text(str(run.pid("sampler-1")))
        partial.replace(hindered)
        run.wait_until(lambda: quota() <= LENGTH // 2, "quota of the slow sampler")
        at = run.updates()
        run.wait_until(lambda: run.updates() >= at + 3, "updates with its short fragments")
        run.process.send_signal(signal.SIGINT)
        summary = run.finish().summary

    assert summary["ledger"]["balanced"] is True
    assert summary["ledger"]["trained"] == summary["env_steps"]
    assert summary["env_steps"] < summary["updates"] * 2 * 2 * LENGTH, "its invalid rows are not counted"
    assert not summary["ledger"]["lost"]


@pytest.mark.slow
@pytest.mark.chaos
def test_no_update_waits_for_a_sampler_that_was_killed(tmp_path: Path) -> None:
    document = {
        "run": {"stop": {"wall_s": 600}},
        "environment": {"id": "environments:SlowEnv", "kwargs": {"step_s": 0.002}, "lanes": 2},
        "policy": {"hidden": [8]},
        "algorithm": {"name": "a2c", "batch_steps": 2 * 2 * LENGTH},
        "sampler": {"count": 2, "fragment_length": LENGTH},
        "stream": {"straggler_deadline_s": 100_000},
        "sync": {"max_policy_lag": 0},
        "restart": {"backoff_s": 100_000, "max_backoff_s": 100_000},  # the dead stay dead
        "evaluation": {"enabled": False},
        "metrics": {"tensorboard": False},
    }
    with LiveRun(tmp_path, document) as run:
        run.wait_until(lambda: run.updates() >= 3, "third update")
        pid = run.pid("sampler-1")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        at = run.updates()
        run.wait_until(lambda: run.updates() >= at + 10, "updates without the dead one")
        assert run.pid("sampler-1") == pid, "nobody has come in its place"
