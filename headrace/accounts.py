"""A sampler's account on disk, ``RUN/accounts/<sampler>.<incarnation>``: true also after ``kill -9``.

Values, see :mod:`headrace.slots`: produced, sealed, last_sequence, settled_through, settled,
evicted_unsunk, drained, one
count per reason.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote

from headrace.errors import ConfigurationError
from headrace.flow.ledger import RUN_ENDED, SamplerAccount
from headrace.slots import SlotFile, read_slots
from headrace.types import SamplerIdentity

FOLDER = "accounts"

DISCARD_REASONS = (
    "non_finite",
    "out_of_range",
    "outside_space",
    "wrong_shape",
    "wrong_dtype",
    "fault_raise_step",
    "fault_raise_reset",
    "fault_hang",
    "fault_exit",
    RUN_ENDED,
    "other",
)
"""Why a sampler discards. Any other word is counted as ``other``, so that the file has a fixed size."""

_MAGIC = b"HRACCT02"
_NUM_FIXED = 7
_NUM_VALUES = _NUM_FIXED + len(DISCARD_REASONS)
_REASON_INDEX = {reason: index for index, reason in enumerate(DISCARD_REASONS)}
_OTHER = _REASON_INDEX["other"]


def next_incarnation(run_dir: Path | None, sampler_id: str) -> int:
    """Claim the next incarnation of a sampler, from 0: durable, and never given out twice.

    Raises ConfigurationError without a run's folder: an incarnation that is used twice would pass off
    new experience as a resend of the old.
    """
    folder = _folder(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    taken = [incarnation for name, incarnation, _ in _files(folder) if name == sampler_id]
    incarnation = max(taken, default=-1) + 1
    while True:
        try:
            os.close(
                os.open(_path(folder, sampler_id, incarnation), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            )
        except FileExistsError:
            incarnation += 1
            continue
        _sync_folder(folder)
        return incarnation


def claim(run_dir: Path | None, sampler: SamplerIdentity) -> None:
    """Make the file of an incarnation that somebody else has given out."""
    folder = _folder(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    _path(folder, sampler.sampler_id, sampler.incarnation).touch()


class AccountFile:
    """The account of the incarnation that runs in this process. Thread-safe; one writer a file.

    The lock guards the fields and the turn of the slots: the loop counts steps while another thread
    may note what is settled.
    """

    def __init__(self, file: SlotFile, sampler: SamplerIdentity) -> None:
        self.sampler = sampler
        self._file = file
        self._lock = threading.Lock()
        self._produced = 0
        self._sealed = 0
        self._last_sequence = -1
        self._settled_through = -1
        self._settled = 0
        self._evicted_unsunk = 0
        self._drained = 0
        self._discarded = [0] * len(DISCARD_REASONS)
        self._write()

    @classmethod
    def create(cls, run_dir: Path | None, sampler: SamplerIdentity) -> AccountFile:
        """Open the account of an incarnation that :func:`next_incarnation` or :func:`claim` has claimed."""
        path = _path(_folder(run_dir), sampler.sampler_id, sampler.incarnation)
        return cls(SlotFile(path, _MAGIC, _NUM_VALUES), sampler)

    def __enter__(self) -> AccountFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def update(self, *, produced: int, sealed: int, discarded: Mapping[str, int]) -> None:
        """Set the totals of this incarnation, in transitions; what is in neither of the last two is open."""
        counts = _by_reason(discarded)
        with self._lock:
            self._produced = produced
            self._sealed = sealed
            self._discarded = counts
            self._write()

    def sealed_through(self, sequence: int) -> None:
        """Note the highest sequence that is sealed."""
        with self._lock:
            self._last_sequence = sequence
            self._write()

    def settled(self, through: int, transitions: int) -> None:
        """Note what the learner has reported settled: the sequence, and all transitions up to it."""
        with self._lock:
            self._settled_through = through
            self._settled = transitions
            self._write()

    def evicted_unsunk(self, transitions: int) -> None:
        """Note how many transitions the hot tier has let go, in total, that the cold tier didn't have."""
        with self._lock:
            self._evicted_unsunk = transitions
            self._write()

    def drained(self) -> None:
        """Note that this incarnation has left in order: nothing more will come of it."""
        with self._lock:
            self._drained = 1
            self._write()

    def account(self) -> SamplerAccount:
        """The account as it is now."""
        with self._lock:
            return _account(self.sampler, self._values())

    def close(self) -> None:
        """Let go of the file; it keeps what was written."""
        self._file.close()

    def _write(self) -> None:
        self._file.write(self._values())

    def _values(self) -> tuple[int, ...]:
        return (
            self._produced,
            self._sealed,
            self._last_sequence,
            self._settled_through,
            self._settled,
            self._evicted_unsunk,
            self._drained,
            *self._discarded,
        )


def keep_account(run_dir: Path, account: SamplerAccount) -> None:
    """Write the account of an incarnation that runs elsewhere; its own process must not write it too."""
    path = _path(_folder(run_dir), account.sampler.sampler_id, account.sampler.incarnation)
    file = SlotFile(path, _MAGIC, _NUM_VALUES)
    try:
        file.write(
            (
                account.produced,
                account.sealed,
                account.last_sequence,
                account.settled_through,
                account.settled,
                account.evicted_unsunk,
                int(account.state == "drained"),
                *_by_reason(account.discarded),
            )
        )
    finally:
        file.close()


def read_accounts(run_dir: Path) -> list[SamplerAccount]:
    """The accounts of all incarnations of a run, by sampler and incarnation; live ones too.

    An incarnation that was claimed and died before its first write has an account of zeros.
    """
    return [
        _read(path, SamplerIdentity(sampler_id, incarnation))
        for sampler_id, incarnation, path in sorted(_files(_folder(run_dir)))
    ]


def _read(path: Path, sampler: SamplerIdentity) -> SamplerAccount:
    numbers = read_slots(path, _MAGIC, _NUM_VALUES)
    return SamplerAccount(sampler) if numbers is None else _account(sampler, numbers[1:])


def _account(sampler: SamplerIdentity, numbers: tuple[int, ...]) -> SamplerAccount:
    fixed = numbers[:_NUM_FIXED]
    produced, sealed, last_sequence, settled_through, settled, evicted_unsunk, drained = fixed
    counts = dict(zip(DISCARD_REASONS, numbers[_NUM_FIXED:], strict=True))
    return SamplerAccount(
        sampler=sampler,
        produced=produced,
        discarded={reason: count for reason, count in counts.items() if count},
        sealed=sealed,
        open=produced - sealed - sum(counts.values()),
        last_sequence=last_sequence,
        settled_through=settled_through,
        settled=settled,
        evicted_unsunk=evicted_unsunk,
        state="drained" if drained else "running",
    )


def _by_reason(discarded: Mapping[str, int]) -> list[int]:
    """Counts in the order of ``DISCARD_REASONS``; whatever isn't one of them is ``other``."""
    counts = [0] * len(DISCARD_REASONS)
    for reason, count in discarded.items():
        counts[_REASON_INDEX.get(reason, _OTHER)] += count
    return counts


def _folder(run_dir: Path | None) -> Path:
    if run_dir is None:
        raise ConfigurationError(["run-dir: a sampler needs the run's folder to keep its account in"])
    return run_dir / FOLDER


def _path(folder: Path, sampler_id: str, incarnation: int) -> Path:
    return folder / f"{quote(sampler_id, safe='')}.{incarnation}"


def _files(folder: Path) -> list[tuple[str, int, Path]]:
    found = []
    for path in folder.glob("*.*") if folder.is_dir() else ():
        name, _, incarnation = path.name.rpartition(".")
        if incarnation.isdigit():
            found.append((unquote(name), int(incarnation), path))
    return found


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
