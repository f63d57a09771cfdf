"""The ledger of a run's folder: samplers' accounts from files, the learner's from the newest version."""

from __future__ import annotations

from pathlib import Path

from headrace.accounts import read_accounts
from headrace.checkpoint import CheckpointDirectory, find_newest, read_journal
from headrace.flow.ledger import Ledger, build_ledger
from headrace.types import LearnerAccount, PolicyVersion, RunView


def read_ledger(run_dir: Path, view: RunView | None, *, run_over: bool) -> Ledger:
    """Where every transition of the run is. ``run_over``: all its processes have ended."""
    learner = newest_accounts(run_dir, view)  # before the samplers', which then are the newer ones
    return build_ledger(read_accounts(run_dir), learner, run_over=run_over)


def newest_accounts(run_dir: Path, view: RunView | None) -> tuple[LearnerAccount, ...]:
    """The learner's accounts of the newest version that the paramserver or the run's folder knows."""
    record = find_newest(CheckpointDirectory(run_dir), read_journal(run_dir)).record
    if view is None or view.status.version is None:
        return record.accounts if record is not None else ()
    if record is not None and _number(record.version) > _number(view.status.version):
        return record.accounts
    return view.accounts


def _number(version: PolicyVersion) -> tuple[int, int]:
    """Numbers never fall, so the higher one is the newer one, whatever the epoch."""
    return version.number, version.epoch
