"""The newest version of a run that is whole on the disk: what a run that is taken up again goes on from."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.record import VersionRecord


@dataclass(frozen=True, slots=True)
class Newest:
    """``record`` is the newest whole version, None if there is none; ``checkpoint`` the number of the newest
    whole checkpoint; ``skipped`` the newer checkpoints that can't be read, newest first, with why.
    """

    record: VersionRecord | None
    checkpoint: int | None
    skipped: tuple[tuple[int, str], ...]


def find_newest(directory: CheckpointDirectory, journal: VersionRecord | None) -> Newest:
    """Look for it among the checkpoints and beside them: ``journal`` is what the run's journal holds."""
    skipped: list[tuple[int, str]] = []
    checkpoint = directory.load_newest(lambda number, sentence: skipped.append((number, sentence)))
    whole = [record for record in (checkpoint, journal) if record is not None]
    return Newest(
        record=max(whole, key=lambda record: record.version, default=None),
        checkpoint=None if checkpoint is None else checkpoint.version.number,
        skipped=tuple(skipped),
    )
