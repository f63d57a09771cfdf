"""What a starting parameter server finds in the run's folder, said in events."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.checkpoint import CheckpointDirectory, Journal, VersionRecord, find_newest
from headrace.config.digest import differing_keys
from headrace.events import EventLog
from headrace.types import PolicyVersion
from services.paramserver.config import Settings
from services.paramserver.issued import Issued, IssuedFile


@dataclass(frozen=True, slots=True)
class Recovered:
    """Where the last server stopped. ``epoch`` is this server's; ``checkpoint`` the newest one on disk."""

    epoch: int
    highest: PolicyVersion | None
    record: VersionRecord | None
    checkpoint: int | None


def recover(
    settings: Settings,
    *,
    directory: CheckpointDirectory,
    issued: IssuedFile,
    journal: Journal,
    events: EventLog,
) -> Recovered:
    """Find the newest whole version and begin a new epoch, durably. Raises OSError."""
    directory.clean()
    found = find_newest(directory, journal.read())
    record = found.record
    for number, sentence in found.skipped:
        events.emit("checkpoint_skipped", number=number, reason=sentence)
    last = issued.read()
    versions = [PolicyVersion(0, number) for number in directory.numbers()[-1:]]  # also damaged ones
    versions += [record.version] if record is not None else []
    versions += [last.newest] if last is not None and last.newest is not None else []
    highest = max(versions, key=lambda version: (version.number, version.epoch), default=None)
    epoch = 1 + max([0 if last is None else last.epoch, *(version.epoch for version in versions)])
    issued.write(Issued(epoch, highest))
    issued.sync()
    _tell(settings, record, epoch, highest, events)
    return Recovered(epoch, highest, record, found.checkpoint)


def _tell(
    settings: Settings,
    record: VersionRecord | None,
    epoch: int,
    highest: PolicyVersion | None,
    events: EventLog,
) -> None:
    if record is None:
        return
    events.emit(
        "recovered",
        version=str(record.version),
        epoch=epoch,
        highest=str(highest),
        env_steps=record.report.env_steps,
        with_training=record.training is not None,
    )
    if record.config_digest != settings.config_digest:
        events.emit(
            "config_changed",
            reason="the run goes on under another configuration than its newest version was trained under",
            keys=_differing(record.config_json, settings.config_json),
            before=record.config_digest,
            now=settings.config_digest,
        )
    if record.run_id != settings.run_id:
        events.emit("run_renamed", before=record.run_id, now=settings.run_id)


def _differing(before: str, now: str) -> list[str]:
    try:
        return differing_keys(before, now)
    except (ValueError, AttributeError):
        return ["(the configuration in the checkpoint can't be read)"]
