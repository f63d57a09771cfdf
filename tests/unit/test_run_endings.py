"""What a run says of itself in the end: saved or not, drained or stopped hard."""

from __future__ import annotations

from pathlib import Path

import pytest
from paramserving import make_record

from headrace.checkpoint import CheckpointDirectory, Journal
from headrace.local.ending import final_outcome, unsaved
from headrace.local.interrupts import Interrupts
from headrace.local.process import ProcessEnd
from headrace.local.summary import Outcome
from headrace.types import PolicyVersion, RunStatus, RunView

FULL = RunView(RunStatus("running", "", PolicyVersion(1, 5)), checkpoint_problem="No space left on device")
FAILED = ProcessEnd("paramserver-0", 1, "the last version could not be saved: no space")
LOST = "version 1.5 could not be saved"


def _interrupts(*names: str) -> Interrupts:
    interrupts = Interrupts()
    for name in names:
        interrupts.request(name)
    interrupts.draining()
    return interrupts


def test_a_version_that_is_not_on_the_disk_is_named_with_the_reason(tmp_path: Path) -> None:
    assert unsaved(tmp_path, FULL, FAILED) == (
        "version 1.5 could not be saved (No space left on device); none is saved"
    )
    CheckpointDirectory(tmp_path).save(make_record(3))
    assert unsaved(tmp_path, FULL, FAILED).endswith("; the newest that is saved is 1.3")


@pytest.mark.parametrize("code", [1, -9])
def test_a_version_on_the_disk_is_saved_however_its_server_ended(tmp_path: Path, code: int) -> None:
    CheckpointDirectory(tmp_path).save(make_record(5))
    assert unsaved(tmp_path, FULL, ProcessEnd("paramserver-0", code, "")) == ""


def test_only_a_server_that_was_killed_may_leave_its_newest_version_to_the_journal(tmp_path: Path) -> None:
    Journal(tmp_path).write(make_record(5))
    assert unsaved(tmp_path, FULL, ProcessEnd("paramserver-0", -9, "")) == ""
    assert LOST in unsaved(tmp_path, FULL, FAILED)


def test_without_a_version_nothing_is_unsaved(tmp_path: Path) -> None:
    assert unsaved(tmp_path, None, FAILED) == ""
    assert unsaved(tmp_path, RunView(RunStatus("starting")), FAILED) == ""


@pytest.mark.parametrize("status", ["finished", "interrupted", "failed"])
def test_a_run_that_did_not_save_has_failed_with_both_reasons(status: str) -> None:
    outcome = final_outcome(Outcome(status, "as it was"), _interrupts(), LOST)
    assert outcome.exit_code == 1
    assert LOST in outcome.reason
    assert "as it was" in outcome.reason


def test_a_run_that_was_saved_ends_as_it_was() -> None:
    before = Outcome("finished", "all updates done")
    assert final_outcome(before, _interrupts(), "") == before


@pytest.mark.parametrize(
    ("signals", "status", "reason"),
    [
        (["SIGINT", "SIGINT"], "interrupted", "Ctrl-C again: stopped hard, without draining"),
        (["SIGTERM", "SIGINT"], "interrupted", "Ctrl-C again: stopped hard, without draining"),
        (["SIGINT"], "interrupted", "Ctrl-C"),
    ],
)
def test_a_hard_stop_and_a_drain_are_told_apart(signals: list[str], status: str, reason: str) -> None:
    interrupts = _interrupts(*signals)
    outcome = final_outcome(Outcome("interrupted", interrupts.reason), interrupts, "")
    assert (outcome.status, outcome.reason) == (status, reason)


def test_a_hard_stop_of_a_run_that_was_ending_says_what_it_was_and_what_is_lost() -> None:
    interrupts = _interrupts()
    interrupts.request("SIGINT")
    outcome = final_outcome(Outcome("finished", "all updates done"), interrupts, LOST)
    assert (outcome.status, outcome.exit_code) == ("interrupted", 0)
    assert outcome.reason == (
        f"Ctrl-C: stopped hard, without draining (finished before: all updates done); {LOST}"
    )
