"""The samplers of a run and the books about them: places, accounts on disk, the ledger of everything."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headrace.accounts import keep_account, next_incarnation, read_accounts
from headrace.cold_accounts import ColdAccounts, ColdCounts
from headrace.config.choices import is_off_policy, most_samplers
from headrace.errors import InvalidDataError, UnavailableError
from headrace.flow.ledger import Ledger, SamplerAccount, build_ledger, build_replay_ledger
from headrace.run_ledger import cold_accounts
from headrace.types import RunView, SamplerIdentity
from services.paramserver.config import Settings
from services.paramserver.places import LEASE_S, Place, Places

ADOPTION_S = 5.0
"""Seconds after a restart in which nobody new is let in, so that those who are there report first."""

_PREFIX = "sampler-"


@dataclass(frozen=True, slots=True)
class MemberView:
    """A sampler that is there. ``silent_s``: seconds since its last report. ``produced`` in transitions."""

    place: Place
    silent_s: float
    produced: int


class Membership:
    """Lets samplers in, keeps their accounts, answers where everything is. Thread-safe.

    Samplers of a local run don't join: they write their accounts into the run's folder themselves, and the
    ledger finds them there. ``_lock`` guards everything, also writing.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        restarted: bool,
        clock: Callable[[], float] = time.monotonic,
        lease_s: float = LEASE_S,
    ) -> None:
        """``restarted``: an earlier server of this run may have let samplers in."""
        config = settings.config
        self._run_dir = settings.run_dir
        self._off_policy = is_off_policy(config)
        self._clock = clock
        self._open_at = clock() + (ADOPTION_S if restarted else 0.0)
        self._lock = threading.Lock()
        self._places = Places(
            num_learners=1 if self._off_policy else config.learner.count,
            most=most_samplers(config),
            clock=clock,
            lease_s=lease_s,
        )
        self._reported: dict[SamplerIdentity, SamplerAccount] = {}
        self._partitions: dict[int, ColdAccounts] = {}
        self._num_partitions = config.replay.partitions

    def join(self, name: str, instance: str) -> Place:
        """Let a sampler in. ExhaustedError: there is no room. UnavailableError: not yet, or not written."""
        if not name or not instance:
            raise InvalidDataError("a sampler that joins needs a name and an instance")
        with self._lock:
            if self._clock() < self._open_at:
                raise UnavailableError("the server has just started; samplers that are there come first")
            try:
                return self._places.join(name, instance, self._claim)
            except OSError as error:
                raise UnavailableError(
                    f"no sampler can be let in, nothing can be written: {error}"
                ) from error

    def report(self, place: Place | None, accounts: Sequence[SamplerAccount]) -> int | None:
        """Take in what was reported. Returns the learner to work for, None without a place.

        ``place`` is what a sampler says of itself, None for whoever did not join. Raises InvalidDataError
        (nobody by that name was ever let in), UnavailableError (can't be written: say it again).
        """
        with self._lock:
            for account in accounts:
                self._take(account)
                if self._has_left(account.sampler):
                    self._places.leave(account.sampler)
            if place is None or self._has_left(place.identity):
                return None
            return self._places.renew(place)

    def report_cold(self, partition: int, counts: Sequence[tuple[SamplerIdentity, ColdCounts]]) -> None:
        """Take in the accounts of one replay partition. Raises as :meth:`report`."""
        if not (self._off_policy and 0 <= partition < self._num_partitions):
            raise InvalidDataError(f"this run has no replay partition {partition}")
        with self._lock, _written():
            books = self._partitions.get(partition)
            if books is None:
                books = self._partitions[partition] = ColdAccounts(self._run_dir, partition)
            for sampler, account in counts:
                self._known(sampler)
                books.write(sampler, account)

    def members(self) -> list[MemberView]:
        """Who is there, by number."""
        with self._lock:
            self._places.expire()
            now = self._clock()
            return [
                MemberView(place, now - place.heard_at, self._produced(place.identity))
                for place in self._places.taken()
            ]

    def ledger(self, view: RunView) -> Ledger:
        """Where every transition is. ``view`` must be older than this call: the run's newest version."""
        cold = cold_accounts(self._run_dir) if self._off_policy else []
        with self._lock:
            self._places.expire()
            here = {place.identity for place in self._places.taken()}
            reported = dict(self._reported)
            settled_in = self._clock() >= self._open_at
        accounts = {account.sampler: account for account in read_accounts(self._run_dir)} | reported
        # Where samplers join, whoever has no place is gone. In a local run none has: the launcher knows.
        joined = accounts.keys() if reported else set[SamplerIdentity]()
        gone = joined - here if settled_in else set[SamplerIdentity]()
        if not self._off_policy:
            return build_ledger(
                accounts.values(), view.accounts, run_over=view.status.ended, gone=gone, reported=joined
            )
        return build_replay_ledger(
            accounts.values(),
            cold,
            run_over=False,
            sampled=0 if view.report is None else view.report.samples_trained,
            gone=gone,
            reported=joined,
        )

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            for books in self._partitions.values():
                books.close()
            self._partitions.clear()

    def _claim(self, index: int) -> SamplerIdentity:
        name = f"{_PREFIX}{index}"
        identity = SamplerIdentity(name, next_incarnation(self._run_dir, name))
        self._reported[identity] = SamplerAccount(identity)
        return identity

    def _take(self, account: SamplerAccount) -> None:
        """Keep an account, unless a newer one is known."""
        known = self._known(account.sampler)
        if known.state == "drained" or account.produced < known.produced or account == known:
            return
        with _written():
            keep_account(self._run_dir, account)
        self._reported[account.sampler] = account

    def _known(self, sampler: SamplerIdentity) -> SamplerAccount:
        """What is known of a sampler, also by an earlier server of the run.

        Only who was let in has an account: files can't be made by asking for them.
        """
        if sampler not in self._reported:
            found = next((a for a in read_accounts(self._run_dir) if a.sampler == sampler), None)
            if found is None:
                raise InvalidDataError(f"nobody was ever let in as {sampler}")
            self._reported[sampler] = found
        return self._reported[sampler]

    def _has_left(self, sampler: SamplerIdentity) -> bool:
        return self._known(sampler).state == "drained"

    def _produced(self, identity: SamplerIdentity) -> int:
        account = self._reported.get(identity)
        return 0 if account is None else account.produced


def index_of(identity: SamplerIdentity) -> int:
    """The number in a name that this server has given. InvalidDataError: it has not given that."""
    number = identity.sampler_id.removeprefix(_PREFIX)
    if not identity.sampler_id.startswith(_PREFIX) or not (number.isascii() and number.isdigit()):
        raise InvalidDataError(f"{identity.sampler_id!r} is not the name of a sampler of this run")
    return int(number)


@contextlib.contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"accounts can't be written: {error}") from error
