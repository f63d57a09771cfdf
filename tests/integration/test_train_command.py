"""``headrace train`` from outside: what it leaves behind, how it is stopped, how it goes on, how it fails."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from live_run import LiveRun
from local_run import command, finish, read_events, small_document, train

from headrace.accounts import read_accounts
from headrace.checkpoint import CheckpointDirectory
from headrace.local.row import read_rows
from headrace.registry import read_records

ENDLESS = {"run": {"seed": 3, "stop": {"updates": 1_000_000}}}
# The process that takes the first step of all takes the blame for ever; every other one is well.
_ONE_VICTIM = """
import os
from environments import CountingEnv

class OneVictim(CountingEnv):
    def step(self, action):
        try:
            os.close(os.open(os.environ["VICTIM"], os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            with open(os.environ["VICTIM"], "w") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            pass
        if open(os.environ["VICTIM"]).read() == str(os.getpid()):
            raise RuntimeError("this one is broken")
        return super().step(action)
"""


def _eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_finished_run_leaves_everything_in_its_folder(tmp_path: Path) -> None:
    document = small_document(metrics={"tensorboard": True, "interval_s": 0.2}, evaluation={"enabled": True})
    run = train(tmp_path, document)
    assert run.exit_code == 0, run.output
    assert run.summary["status"] == "finished"
    assert run.summary["reason"].startswith("run.stop.updates")
    assert run.summary["updates"] >= 5
    assert run.summary["ledger"]["balanced"] is True
    assert run.summary["ledger"]["trained"] == run.summary["env_steps"] == 64 * run.summary["updates"]
    assert run.summary["restarts"] == dict.fromkeys(("paramserver", "learner", "sampler", "evaluator"), 0)
    for name in (
        "config.yaml",
        "events.jsonl",
        "plots/learning_curve.png",
        "checkpoints/latest/manifest.json",
    ):
        assert (run.folder / name).is_file(), name
    logs = {path.name for path in (run.folder / "logs").iterdir()}
    assert logs >= {f"{service}-0.log" for service in ("paramserver", "learner", "sampler", "evaluator")}
    assert list((run.folder / "tb").glob("events.out.tfevents.*"))
    rows = read_rows(run.folder / "metrics.jsonl")
    assert rows[-1]["env_steps"] == run.summary["env_steps"]
    assert [row["env_steps"] for row in rows] == sorted(row["env_steps"] for row in rows)
    assert str(run.folder) in run.output
    assert "starting it again" not in run.output


@pytest.mark.slow
def test_ctrl_c_drains_and_saves_and_the_run_goes_on_with_resume(tmp_path: Path) -> None:
    with LiveRun(tmp_path, small_document(**ENDLESS)) as live:
        live.wait_until(lambda: live.updates() >= 3, "update 3")
        live.process.send_signal(signal.SIGINT)
        first = live.finish()
    assert first.exit_code == 0, first.output
    assert (first.summary["status"], first.summary["reason"]) == ("interrupted", "Ctrl-C")
    assert first.summary["ledger"]["balanced"] is True
    goal = first.summary["updates"] + 5
    second = finish(command("train", "--resume", str(first.folder), f"run.stop.updates={goal}"), first.folder)
    assert second.exit_code == 0, second.output
    assert second.summary["run_id"] == first.summary["run_id"]
    assert second.summary["updates"] == goal
    # The drain may have ended the first start with cut fragments; from there on every update is full.
    assert second.summary["env_steps"] == first.summary["env_steps"] + 64 * 5
    checkpoints = CheckpointDirectory(second.folder)
    assert checkpoints.load(checkpoints.resolve("latest")).version.number == goal
    incarnations = [account.sampler.incarnation for account in read_accounts(second.folder)]
    assert incarnations == [0, 1], "a resumed sampler must not replay the old seed stream"
    assert second.summary["ledger"]["trained"] == second.summary["env_steps"]
    assert second.summary["ledger"]["balanced"] is True
    assert second.summary["wall_s"] > first.summary["wall_s"]
    env_steps = [row["env_steps"] for row in read_rows(second.folder / "metrics.jsonl")]
    assert env_steps == sorted(env_steps)


@pytest.mark.slow
def test_a_second_ctrl_c_stops_hard_and_still_leaves_a_summary(tmp_path: Path) -> None:
    document = small_document(
        environment={"id": "environments:SlowEnv", "kwargs": {"step_s": 30.0}, "lanes": 4},
        sampler={"fragment_length": 16, "drain_s": 200.0},
        **ENDLESS,
    )
    with LiveRun(tmp_path, document) as live:
        live.wait_until(lambda: live.record("sampler-0") is not None, "sampler")
        pids = [record.pid for record in read_records(live.folder)]
        live.process.send_signal(signal.SIGINT)
        live.wait_until(lambda: "Stopping" in live.output(), "announcement of the drain")
        live.process.send_signal(signal.SIGINT)
        run = live.finish()
    assert run.exit_code == 0, run.output
    assert run.summary["status"] == "interrupted"
    assert run.summary["reason"].startswith("Ctrl-C again: stopped hard, without draining")
    assert run.summary["wall_s"] < 150
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
def test_a_killed_launcher_takes_its_services_along_and_the_run_can_be_resumed(tmp_path: Path) -> None:
    document = small_document(paramserver={"checkpoint_every": 1}, **ENDLESS)
    with LiveRun(tmp_path, document) as live:
        live.wait_until(lambda: live.updates() >= 3, "update 3")
        pids = [record.pid for record in read_records(live.folder)]
        live.process.kill()
        live.process.wait(60)
        _eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    run = finish(command("train", "--resume", str(live.folder), "run.stop.updates=8"), live.folder)
    assert run.exit_code == 0, run.output
    assert run.summary["ledger"]["balanced"] is True
    assert run.summary["updates"] >= 8


@pytest.mark.slow
def test_a_run_without_samplers_fails_with_the_reason_as_the_last_line(tmp_path: Path) -> None:
    document = small_document(
        environment={"id": "environments:FaultyEnv", "kwargs": {"kind": "raise_always"}, "lanes": 4},
        sampler={"fragment_length": 16, "restart_backoff_s": 0.0},
    )
    run = train(tmp_path, document, "--quiet")
    assert run.exit_code == 1
    assert run.summary["status"] == "failed"
    assert "simulator error in step" in run.summary["reason"]
    assert run.output.splitlines()[-1] == f"The run failed: {run.summary['reason']}"
    assert "Traceback" not in run.output


@pytest.mark.slow
def test_a_run_goes_on_without_the_sampler_that_is_broken_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_victim.py").write_text(_ONE_VICTIM)
    monkeypatch.setenv("VICTIM", str(tmp_path / "victim"))
    document = small_document(
        environment={"id": "one_victim:OneVictim", "lanes": 4},
        sampler={"count": 2, "fragment_length": 16, "restart_backoff_s": 0.0},
        run={"seed": 3, "stop": {"updates": 30}},
    )
    run = train(tmp_path, document, python_path=tmp_path)
    assert run.exit_code == 0, run.output
    (given_up,) = read_events(run.folder, "given_up")
    assert "this one is broken" in given_up["reason"]
    assert run.summary["ledger"]["balanced"] is True


@pytest.mark.slow
def test_a_folder_in_use_is_refused_to_a_second_launcher(tmp_path: Path) -> None:
    with LiveRun(tmp_path, small_document(**ENDLESS)) as live:
        live.wait_until(lambda: live.updates() >= 1, "update 1")
        second = finish(command("train", "--resume", str(live.folder)), live.folder)
        assert second.exit_code == 2
        assert "another headrace is running in this folder" in second.output
        assert json.loads((live.folder / "run.json").read_text())["run_id"]
        live.process.send_signal(signal.SIGINT)
        assert live.finish().exit_code == 0
