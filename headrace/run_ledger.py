"""The ledger of a run's folder: accounts of samplers and of the cold tier from files, the learner's from the
newest version.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from headrace.accounts import read_accounts
from headrace.checkpoint import CheckpointDirectory, find_newest, read_journal
from headrace.cold_accounts import FOLDER, read_cold_accounts
from headrace.flow.ledger import ColdAccount, Ledger, build_ledger, build_replay_ledger
from headrace.types import LearnerAccount, PolicyVersion, RunView, SamplerIdentity


def read_ledger(run_dir: Path, view: RunView | None, *, run_over: bool) -> Ledger:
    """Where every transition of the run is. ``run_over``: all its processes have ended."""
    if learns_from_replay(run_dir):
        cold = cold_accounts(run_dir)  # before the samplers', which then are the newer ones
        accounts = read_accounts(run_dir)
        return build_replay_ledger(accounts, cold, run_over=run_over, sampled=_sampled(run_dir, view))
    learner = newest_accounts(run_dir, view)  # before the samplers', which then are the newer ones
    return build_ledger(read_accounts(run_dir), learner, run_over=run_over)


def learns_from_replay(run_dir: Path) -> bool:
    """Whether the run's experience goes to replay: its directory keeps a journal in the run's folder."""
    return (run_dir / FOLDER).is_dir()


def _sampled(run_dir: Path, view: RunView | None) -> int:
    """Items drawn so far, as the newest version that is known says."""
    if view is not None and view.report is not None:
        return view.report.samples_trained
    record = find_newest(CheckpointDirectory(run_dir), read_journal(run_dir)).record
    return record.report.samples_trained if record is not None else 0


def cold_accounts(run_dir: Path) -> list[ColdAccount]:
    """What the cold tier has done with each incarnation, all partitions together."""
    found: dict[SamplerIdentity, ColdAccount] = {}
    for account in read_cold_accounts(run_dir):
        before = found.get(account.sampler, ColdAccount(account.sampler))
        counts = account.counts
        lost = Counter(before.lost) + Counter(redis_lost=counts.redis_lost, damaged=counts.damaged)
        found[account.sampler] = ColdAccount(
            account.sampler,
            received=before.received + counts.received,
            stored=before.stored + counts.stored,
            evicted=before.evicted + counts.evicted,
            lost=dict(lost),
        )
    return list(found.values())


def cold_totals(run_dir: Path) -> dict[str, int] | None:
    """Transitions that the cold tier received, and where they are; None if it never received any."""
    accounts = cold_accounts(run_dir)
    if not accounts:
        return None
    return {
        "received": sum(account.received for account in accounts),
        "stored": sum(account.stored for account in accounts),
        "evicted": sum(account.evicted for account in accounts),
        "lost": sum(sum(account.lost.values()) for account in accounts),
    }


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
