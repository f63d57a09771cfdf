"""Which versions there are, who may add the next one, and what number it gets. Pure: no disk, no threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from headrace.checkpoint import Blob, VersionRecord
from headrace.errors import FencedError, InvalidDataError
from headrace.sync.contribution import Contributor
from headrace.types import LearnerAccount, PolicyVersion, SamplerIdentity, TrainingReport

RECENT_BYTES = 16 * 2**20
"""Older versions are kept up to this many bytes, so that an evaluation may still begin with one."""
_ALWAYS_KEPT = 2  # newest versions that are kept whatever their size
_MAX_EVALUATED = 4  # evaluations that may be under way at the same time
_MAX_HISTORY = 4096  # versions whose environment steps are remembered for evaluations


@dataclass(frozen=True, slots=True)
class Update:
    """What a learner hands in: the update's result, and the version it started from (None: the first)."""

    base: PolicyVersion | None
    report: TrainingReport
    accounts: tuple[LearnerAccount, ...]
    acting: Blob
    training: Blob | None
    contributors: tuple[Contributor, ...] = ()


class Versions:
    """The versions of a run, newest wins.

    Invariants: ``highest`` never falls and every number given out is above it; an update is admitted
    only if it goes on from the newest version, or comes from an earlier epoch while this one has
    issued nothing (the server restarted; the learner's state is as new as ours or newer). Not thread-safe.
    """

    def __init__(
        self,
        *,
        epoch: int,
        highest: PolicyVersion | None,
        recovered: VersionRecord | None = None,
        recent_bytes: int = RECENT_BYTES,
    ) -> None:
        self.epoch = epoch
        self.highest = highest
        self.newest = recovered
        self._issued_in_epoch = False
        self._recent_bytes = recent_bytes
        self._older: OrderedDict[PolicyVersion, VersionRecord] = OrderedDict()  # without training state
        self._older_bytes = 0  # counted as they come and go: with small versions there are hundreds
        self._evaluated: OrderedDict[PolicyVersion, VersionRecord] = OrderedDict()
        self._env_steps: OrderedDict[PolicyVersion, int] = OrderedDict()
        if recovered is not None:
            self._remember(recovered)

    @property
    def next_version(self) -> PolicyVersion:
        """What the next version will be called."""
        return PolicyVersion(self.epoch, 0 if self.highest is None else self.highest.number + 1)

    @property
    def rolled_back(self) -> bool:
        """Whether versions were lost: the newest that could be recovered is not the newest ever issued."""
        return self.newest is not None and self.newest.version != self.highest

    def repeated(self, update: Update) -> VersionRecord | None:
        """The newest version as it should be from now on, if ``update`` only says it again.

        That is a retry after a lost answer. It may bring the training state that was missing, or
        accounts that have gone on (fragments dropped since). None: it is something new.
        """
        newest = self.newest
        if newest is None or newest.report.updates != update.report.updates:
            return None
        if newest.acting.sha256 != update.acting.sha256:
            return None
        check_accounts(newest.accounts, update.accounts)
        return replace(newest, accounts=update.accounts, training=newest.training or update.training)

    def admit(self, update: Update) -> None:
        """Raise unless ``update`` may become the next version.

        FencedError: it does not go on from the newest version. InvalidDataError: accounts fell.
        """
        newest, base = self.newest, update.base
        if newest is None:
            if base is not None and base.epoch >= self.epoch:
                raise FencedError(f"version {base} was never issued here: fetch first")
            return
        if base is None:
            raise FencedError(f"version {newest.version} is already there: fetch it and go on from it")
        from_before = base.epoch < self.epoch and base >= newest.version and not self._issued_in_epoch
        if base != newest.version and not from_before:
            raise FencedError(
                f"the update started from version {base}, the newest is {newest.version}: "
                "fetch it and go on from it"
            )
        check_accounts(newest.accounts, update.accounts)

    def install(self, record: VersionRecord) -> None:
        """Make ``record`` the newest version: one called :attr:`next_version`, or the newest again."""
        if self.newest is not None and self.newest.version != record.version:
            older = replace(self.newest, training=None)
            self._older[older.version] = older
            self._older_bytes += older.nbytes
        self.newest = record
        if self.highest is None or record.version > self.highest:
            self.highest = record.version
            self._issued_in_epoch = True
        self._remember(record)
        self._forget_old()

    def find(self, version: PolicyVersion) -> VersionRecord | None:
        """That version if it is still in memory."""
        if self.newest is not None and self.newest.version == version:
            return self.newest
        return self._evaluated.get(version) or self._older.get(version)

    def begin_evaluation(self, version: PolicyVersion) -> bool:
        """Keep ``version`` until its result is in. False: it is gone already."""
        record = self.find(version)
        if record is None:
            return False
        self._evaluated[version] = record
        self._evaluated.move_to_end(version)
        while len(self._evaluated) > _MAX_EVALUATED:
            self._evaluated.popitem(last=False)
        return True

    def end_evaluation(self, version: PolicyVersion) -> VersionRecord | None:
        """The evaluated version, which is no longer kept for that; None if it is gone."""
        record = self.find(version)
        self._evaluated.pop(version, None)
        return record

    def env_steps_at(self, version: PolicyVersion) -> int:
        """Environment steps of the run when ``version`` was published; 0 if long forgotten."""
        return self._env_steps.get(version, 0)

    def held(self) -> Iterator[VersionRecord]:
        """Every version in memory."""
        seen = {**self._older, **self._evaluated}
        if self.newest is not None:
            seen[self.newest.version] = self.newest
        return iter(seen.values())

    @property
    def held_bytes(self) -> int:
        """Bytes of every version in memory."""
        held = self._older_bytes + (0 if self.newest is None else self.newest.nbytes)
        for version, record in self._evaluated.items():
            if self.newest is None or version != self.newest.version:
                without_training = self._older.get(version)
                held += record.nbytes - (0 if without_training is None else without_training.nbytes)
        return held

    def _remember(self, record: VersionRecord) -> None:
        self._env_steps[record.version] = record.report.env_steps
        while len(self._env_steps) > _MAX_HISTORY:
            self._env_steps.popitem(last=False)

    def _forget_old(self) -> None:
        while len(self._older) >= _ALWAYS_KEPT and self._older_bytes > self._recent_bytes:
            _version, record = self._older.popitem(last=False)
            self._older_bytes -= record.nbytes


def check_accounts(before: Iterable[LearnerAccount], after: Iterable[LearnerAccount]) -> None:
    """Raise InvalidDataError, naming the sampler, if any count of the ledger fell."""
    now: dict[SamplerIdentity, LearnerAccount] = {account.sampler: account for account in after}
    for old in before:
        new = now.get(old.sampler)
        if new is None:
            raise InvalidDataError(f"the account of {old.sampler} is missing; it was there before")
        fell = [
            f"{name} from {was} to {now_is}"
            for name, was, now_is in (
                ("settled_through", old.settled_through, new.settled_through),
                ("trained", old.trained, new.trained),
                *((f"dropped[{key}]", count, new.dropped.get(key, 0)) for key, count in old.dropped.items()),
            )
            if now_is < was
        ]
        if fell:
            raise InvalidDataError(f"the account of {old.sampler} fell: {', '.join(fell)}")
