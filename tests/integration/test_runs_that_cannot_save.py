"""What is not on the disk is said aloud: no run ends well without having saved what it learned."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from pathlib import Path

import pytest
from live_run import LiveRun
from local_run import FinishedRun, command, finish, small_document, train

from headrace.checkpoint import CheckpointDirectory
from headrace.local.run_folder import RunFolder

pytestmark = pytest.mark.slow

ENDLESS = {"run": {"seed": 3, "stop": {"updates": 1_000_000}}}
FULL = Path("/dev/full")


def _make_unwritable(folder: Path) -> None:
    """A file in place of the folder: nobody can write into it, root neither."""
    for number in range(1000):
        folder.rename(folder.with_name(f"{folder.name}-before-{number}"))
        with contextlib.suppress(IsADirectoryError):  # the writer has made it again in between
            folder.write_text("a file where the folder should be")
            return
    raise AssertionError(f"{folder} comes back again and again")


def _damage(folder: Path) -> None:
    (folder / "acting.safetensors").write_bytes(b"not what was written")


def _resume(folder: Path, updates: int) -> FinishedRun:
    return finish(command("train", "--resume", str(folder), f"run.stop.updates={updates}"), folder)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run of 5 updates, with a checkpoint of each version, or nearly."""
    run = train(tmp_path, small_document(paramserver={"checkpoint_every": 1, "keep": 10}))
    assert run.exit_code == 0, run.output
    return run.folder


def test_a_run_that_cannot_save_warns_and_fails_with_the_reason(tmp_path: Path) -> None:
    document = small_document(paramserver={"checkpoint_every": 1}, **ENDLESS)
    with LiveRun(tmp_path, document) as live:
        live.wait_until(lambda: live.updates() >= 1, "update 1")
        _make_unwritable(RunFolder(live.folder).checkpoints)
        live.wait_until(lambda: "Warning: checkpoints can't be written: " in live.output(), "warning")
        live.process.send_signal(signal.SIGINT)
        run = live.finish()
    assert run.exit_code == 1, run.output
    assert run.summary["status"] == "failed"
    assert "could not be saved" in run.summary["reason"]
    assert "(the run was interrupted: Ctrl-C)" in run.summary["reason"]
    assert run.output.splitlines()[-1] == f"The run failed: {run.summary['reason']}"
    assert "Traceback" not in run.output


def test_a_resumed_run_says_from_where_and_why_if_not_from_its_newest_version(trained: Path) -> None:
    for file in (trained / "paramserver").glob("newest-*"):
        file.unlink()
    _damage(trained / "checkpoints" / "0000000005")
    # The writer may have skipped a version while it was busy with the one before.
    newest = max(number for number in CheckpointDirectory(trained).numbers() if number < 5)
    run = _resume(trained, 8)
    assert run.exit_code == 0, run.output
    place = f"version 1.{newest} ({64 * newest} environment steps)"
    assert f"Warning: going on from {place}, not from 5, the newest: " in run.output
    assert "blob 'acting' was altered" in run.output
    assert run.summary["updates"] == 8
    assert run.summary["ledger"]["lost"] == {"not_saved": 64 * (5 - newest)}
    assert run.summary["ledger"]["balanced"] is True


def test_a_run_of_which_nothing_can_be_read_is_not_started_anew_in_silence(trained: Path) -> None:
    for number in CheckpointDirectory(trained).numbers():
        _damage(CheckpointDirectory(trained).folder(number))
    whole_in_journal = _resume(trained, 6)
    assert whole_in_journal.exit_code == 0, whole_in_journal.output
    assert "which is whole in the journal" in whole_in_journal.output
    assert whole_in_journal.summary["ledger"]["lost"] == {}
    _damage(CheckpointDirectory(trained).folder(6))
    shutil.rmtree(trained / "paramserver")
    before = (trained / "summary.json").read_text()
    refused = _resume(trained, 7)
    assert refused.exit_code == 2
    assert "--resume: no version of this run can be read" in refused.output
    assert (trained / "summary.json").read_text() == before


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_on_a_full_disk_the_summary_is_still_printed_and_no_traceback(trained: Path) -> None:
    folder = RunFolder(trained)
    for file in (folder.metrics, trained / "events.jsonl", folder.log("launcher", 0)):
        file.unlink()
        file.symlink_to(FULL)
    folder.summary.unlink()
    folder.summary.mkdir()
    run = finish(command("train", "--resume", str(trained), "run.stop.updates=8"), trained / "nowhere")
    assert run.exit_code == 1, run.output
    assert "Traceback" not in run.output
    assert "Logging error" not in run.output
    assert "512 in 8 updates" in run.output
    assert "Warning: metrics.jsonl can't be written: [Errno 28] No space left on device" in run.output
    last = run.output.splitlines()[-1]
    assert last.startswith("The run failed: summary.json could not be written: ")
    assert "(the run was finished: run.stop.updates: 8 of 8 done)" in last
    assert (
        json.loads((trained / "checkpoints" / "latest" / "manifest.json").read_text())["report"]["updates"]
        == 8
    )
