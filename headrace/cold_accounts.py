"""A cold partition's accounts on disk, ``RUN/replay/<partition>/<sampler>.<incarnation>``.

One file a sampler incarnation, true also after ``kill -9`` (see :mod:`headrace.slots`). They say where each
transition is that came in, so that the ledger balances, also after Redis has lost what it held.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from pathlib import Path
from urllib.parse import quote, unquote

from headrace.slots import SlotFile, read_slots
from headrace.types import SamplerIdentity

FOLDER = "replay"
_MAGIC = b"HRCOLD01"


@dataclass(frozen=True, slots=True)
class ColdCounts:
    """What became of the transitions of one incarnation in one partition.

    ``received == standby + active + evicted + redis_lost + damaged``. ``standby``: stored, while their hot
    tier still has them; ``active``: stored, and in no other place. ``evicted``: gone by capacity, or because
    a resumed run did not want them; ``redis_lost``: Redis no longer has them; ``damaged``: their checksum
    failed. Sequences, -1: none: the highest received, released by the hot tier, and evicted. ``gone``: 1
    once the incarnation has left.
    """

    received: int = 0
    standby: int = 0
    active: int = 0
    evicted: int = 0
    redis_lost: int = 0
    damaged: int = 0
    received_through: int = -1
    released_through: int = -1
    evicted_through: int = -1
    gone: int = 0

    @property
    def stored(self) -> int:
        """Transitions that are in Redis."""
        return self.standby + self.active

    @property
    def balanced(self) -> bool:
        """Whether every transition is accounted for."""
        return self.received == (self.standby + self.active + self.evicted + self.redis_lost + self.damaged)


_NUM_VALUES = len(fields(ColdCounts))


@dataclass(frozen=True, slots=True)
class PartitionAccount:
    """The counts of one sampler incarnation in one partition."""

    partition: int
    sampler: SamplerIdentity
    counts: ColdCounts


class ColdAccounts:
    """The files of one partition, which has one writer. Not thread-safe. No folder: nothing is kept."""

    def __init__(self, run_dir: Path | None, partition: int) -> None:
        self._folder = None if run_dir is None else run_dir / FOLDER / str(partition)
        self._files: dict[SamplerIdentity, SlotFile] = {}
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[SamplerIdentity, ColdCounts]:
        """What was written last, by this process or an earlier one."""
        return {} if self._folder is None else _read_folder(self._folder)

    def write(self, sampler: SamplerIdentity, counts: ColdCounts) -> None:
        """Replace the counts of an incarnation."""
        if self._folder is None:
            return
        file = self._files.get(sampler)
        if file is None:
            path = self._folder / f"{quote(sampler.sampler_id, safe='')}.{sampler.incarnation}"
            path.touch()
            file = self._files[sampler] = SlotFile(path, _MAGIC, _NUM_VALUES)
        file.write(astuple(counts))

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def read_cold_accounts(run_dir: Path) -> list[PartitionAccount]:
    """All accounts of a run, by partition and incarnation; live ones too."""
    return [
        PartitionAccount(int(folder.name), sampler, counts)
        for folder in sorted((run_dir / FOLDER).glob("*"))
        if folder.is_dir() and folder.name.isdigit()
        for sampler, counts in sorted(_read_folder(folder).items())
    ]


def _read_folder(folder: Path) -> dict[SamplerIdentity, ColdCounts]:
    found = {}
    for path in folder.glob("*.*"):
        name, _, incarnation = path.name.rpartition(".")
        if not incarnation.isdigit():
            continue
        numbers = read_slots(path, _MAGIC, _NUM_VALUES)
        found[SamplerIdentity(unquote(name), int(incarnation))] = (
            ColdCounts() if numbers is None else ColdCounts(*numbers[1:])
        )
    return found
