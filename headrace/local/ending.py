"""How a run ended, told honestly: saved or not, in order or by force."""

from __future__ import annotations

from pathlib import Path

from headrace.checkpoint import CheckpointDirectory, find_newest, read_journal
from headrace.local.interrupts import Interrupts
from headrace.local.process import ProcessEnd
from headrace.local.summary import Outcome
from headrace.types import RunView


def unsaved(run_dir: Path, view: RunView | None, end: ProcessEnd | None) -> str:
    """Why the newest version of a run that is over is not on the disk; empty if it is, or if there is none.

    ``view`` is the last that was heard of the run, ``end`` how its parameter server ended: one that
    left with exit code 0 has saved it, and one that was killed may still have it in its journal.
    """
    if view is None or view.status.version is None or (end is not None and end.returncode == 0):
        return ""
    wanted = view.status.version.number
    was_killed = end is not None and end.returncode < 0
    newest = find_newest(CheckpointDirectory(run_dir), read_journal(run_dir) if was_killed else None).record
    if newest is not None and newest.version.number >= wanted:
        return ""
    there = "none is saved" if newest is None else f"the newest that is saved is {newest.version}"
    reason = view.checkpoint_problem or (end.reason if end is not None else "nobody knows why")
    return f"version {view.status.version} could not be saved ({reason}); {there}"


def final_outcome(outcome: Outcome, interrupts: Interrupts, problem: str) -> Outcome:
    """What to say in the end, now that it is known whether the run was left in order and what was saved.

    ``problem`` is the result of :func:`unsaved`. Whoever stops a run hard has chosen to lose what was
    not saved; otherwise a run that could not save its last version has failed, however it went before.
    """
    if interrupts.hard and outcome.status != "failed":
        before = "" if outcome.status == "interrupted" else f" ({outcome.status} before: {outcome.reason})"
        said = f"{interrupts.hard_reason}: stopped hard, without draining{before}"
        return Outcome("interrupted", f"{said}; {problem}" if problem else said)
    if not problem:
        return outcome
    if outcome.status == "failed":
        return Outcome("failed", f"{outcome.reason}; {problem}")
    return Outcome("failed", f"{problem} (the run was {outcome.status}: {outcome.reason})")
