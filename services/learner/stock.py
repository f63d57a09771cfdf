"""What has come in and what becomes of it: held, dropped, taken for an update, settled.

Not thread-safe and never waits: the intake's lock is around it, and it is told the time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.config.sections import Config, SamplerConfig
from headrace.errors import InvalidDataError
from headrace.flow.admission import Admission
from headrace.flow.credits import CreditPool
from headrace.flow.ledger import MISSING
from headrace.flow.leveling import Leveling
from headrace.flow.messages import Refused, Settled
from headrace.flow.watermarks import Watermarks
from headrace.types import Fragment, LearnerAccount, SamplerIdentity
from services.learner.buffer import FragmentBuffer, Held
from services.learner.gate import BatchGate, Decision
from services.learner.granting import Granting, Stream
from services.learner.settlement import Entry, IncarnationBook
from services.learner.terms import batch_fragments, fragments_per_update

STALE = "stale"

_EARLY_SETTLEMENT = 4  # dropped bytes of one incarnation beyond capacity / 4 are settled at once


@dataclass(frozen=True, slots=True, eq=False)
class TakenBatch:
    """What the next update trains on, by sampler and sequence. ``lags``: one a fragment, in updates."""

    fragments: list[Fragment]
    lags: tuple[int, ...]
    held: tuple[Held, ...]

    @property
    def num_transitions(self) -> int:
        """Valid transitions of all fragments."""
        return sum(fragment.num_transitions for fragment in self.fragments)


class Stock:
    """Fragments and accounts of all incarnations, with the credit and the permits to send more.

    Invariants: bytes held and promised never exceed ``stream.capacity_bytes``; a sequence of an
    incarnation is trained or dropped once; no fragment with a policy lag above ``sync.max_policy_lag``
    is handed out. What happened waits in ``events`` as ``(kind, fields)`` until somebody tells of it.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._max_lag = config.sync.max_policy_lag
        self.batch_fragments = batch_fragments(config)
        self.watermarks = Watermarks(config.stream.high_watermark, config.stream.low_watermark)
        self.credits = CreditPool(config.stream.capacity_bytes, self.watermarks)
        self.buffer = FragmentBuffer()
        self.books: dict[SamplerIdentity, IncarnationBook] = {}
        self._taken: deque[TakenBatch] = deque()
        self._frozen: list[LearnerAccount] | None = None  # as published with the oldest taken batch
        self.dropped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._begin_from(0)

    def restore(self, accounts: Sequence[LearnerAccount], version: int) -> None:
        """Go on from the accounts of a published version; only while no stream is open."""
        self.books = {account.sampler: IncarnationBook.restored(account) for account in accounts}
        self._begin_from(version)

    def receive(self, stream: Stream, fragment: Fragment, nbytes: int) -> bool:
        """Hold a fragment, unless it is a duplicate or too old. Returns whether it is held."""
        book = stream.book
        if fragment.id.sampler != book.sampler:
            raise InvalidDataError(f"fragment {fragment.id} on the stream of {book.sampler}")
        if not self._is_new(stream, fragment.id.sequence, nbytes):
            return False
        entry = self._enter(book, fragment, nbytes)
        self._level(stream, fragment.steps_per_s)
        book.newest_version = max(book.newest_version, fragment.policy_version.number)
        held = Held(fragment, nbytes, stream.token, book, entry, book.newest_version)
        if self._lag(held) > self._max_lag:
            self.admission.refused(stream.token, held.version)
            self._drop(stream.token, book, entry, STALE)
            return False
        self.admission.arrived(stream.token, held.version)
        self.buffer.add(held)
        return True

    def refuse(
        self, stream: Stream, sequence: int, num_transitions: int, nbytes: int, reason: str, detail: str
    ) -> None:
        """Enter a bad fragment, to be settled in its turn as dropped, and say so to its sampler."""
        if not self._is_new(stream, sequence, nbytes):
            return
        entry = stream.book.receive(sequence, num_transitions, nbytes)
        self.admission.refused(stream.token, stream.book.newest_version)
        stream.send(Refused(sequence, reason, detail))
        self._drop(stream.token, stream.book, entry, reason)

    def grant(self, *, hold_permits: bool, only: int | None) -> None:
        """Give leave to send; ``only`` one stream, if nothing was freed."""
        if self._drop_stale():
            only = None
        self.granting.pump(hold_permits=hold_permits, only=only)

    def try_take(self, now: float) -> tuple[TakenBatch | None, Decision]:
        """The next batch if it may be taken, and what was decided: else why not, and when to look again."""
        self._drop_stale()
        decision = self._gate.decide(
            now,
            held=len(self.buffer),
            is_low=self.watermarks.is_low(self.credits.fill),
            unable=self.granting.unable(),
        )
        for token, permit in decision.overdue:
            self.admission.lapse(token, permit)
            sampler = self.granting.streams[token].book.sampler
            self.events.append(("straggler", {"sampler": str(sampler), "permit": permit.index}))
        if not decision.count:
            return None, decision
        held = sorted(self.buffer.pop(decision.count), key=lambda one: one.fragment.id)
        batch = TakenBatch([one.fragment for one in held], tuple(self._lag(one) for one in held), tuple(held))
        self.admission.take(one.version for one in held)
        self._gate.taken()
        self._taken.append(batch)
        return batch, decision

    def accounts(self, including: TakenBatch | None) -> list[LearnerAccount]:
        """The accounts as they are once ``including``, the oldest batch taken, is part of a version."""
        if including is None:
            return [book.account() for book in self.books.values()]
        if not self._taken or self._taken[0] is not including:
            raise ValueError("batches are published in the order in which they were taken")
        if self._frozen is None:
            trained = frozenset(held.entry for held in including.held)
            self._frozen = [book.account(trained) for book in self.books.values()]
        return list(self._frozen)

    def commit(self, taken: TakenBatch, version: int) -> None:
        """The oldest batch taken is part of the published ``version``: settle it, free its bytes."""
        accounts = self.accounts(taken)
        self.admission.advance(version, consumed=True)
        self._taken.popleft()
        self._frozen = None
        for held in taken.held:
            self.credits.release(held.token, held.nbytes)
        for account in accounts:
            self._settle(self.books[account.sampler], account)

    def set_updates(self, updates: int) -> None:
        """From now on a batch is for so many updates; at most as many as ``sync.local_steps`` may come to."""
        self.batch_fragments = updates * fragments_per_update(self._config)
        self.admission.batch_fragments = self.batch_fragments

    def discard(self, taken: TakenBatch, version: int, reason: str) -> None:
        """What was learned from the oldest batch taken is part of no version: drop its fragments."""
        if not self._taken or self._taken[0] is not taken:
            raise ValueError("batches are dropped in the order in which they were taken")
        self._taken.popleft()
        self._frozen = None
        self.admission.advance(version, consumed=True)
        for held in taken.held:
            self._drop(held.token, held.book, held.entry, reason)

    def _begin_from(self, version: int) -> None:
        """New admission from ``version`` on."""
        stream, sync = self._config.stream, self._config.sync
        self.admission = Admission(
            batch_fragments=self.batch_fragments, max_lag=self._max_lag, version=version
        )
        self.granting = Granting(
            self.credits,
            self.admission,
            paced=sync.lag_control == "pace",
            leveling=_leveling(self._config.sampler),
        )
        self._gate = BatchGate(
            self.admission,
            batch_deadline_s=stream.batch_deadline_s,
            straggler_deadline_s=stream.straggler_deadline_s,
        )

    def _is_new(self, stream: Stream, sequence: int, nbytes: int) -> bool:
        """Charge the credit of a fragment; whether it is one that is not known yet."""
        self.credits.arrived(stream.token, nbytes)
        if sequence > stream.book.received_through:
            return True
        self.credits.release(stream.token, nbytes)
        stream.resent_through = sequence
        self.counts["duplicates"] += 1
        return False

    def _enter(self, book: IncarnationBook, fragment: Fragment, nbytes: int) -> Entry:
        """Enter a new fragment into its account; note if it does not follow the one before."""
        sequence, expected = fragment.id.sequence, book.received_through + 1
        entry = book.receive(sequence, fragment.num_transitions, nbytes, fragment.produced_through)
        if sequence != expected or fragment.produced_through != book.produced_through or entry.missing:
            self.counts["gaps"] += 1
            self.dropped[MISSING] += entry.missing
            self.events.append(("gap", {"fragment": str(fragment.id), "missing_transitions": entry.missing}))
        return entry

    def _level(self, stream: Stream, steps_per_s: float) -> None:
        """A fragment was made at ``steps_per_s``: tell of it if its sampler has a new quota by that."""
        quota = self.granting.observe_speed(stream.token, steps_per_s)
        if quota is not None:
            fields = {
                "sampler": str(stream.book.sampler),
                "quota_steps": quota.steps,
                "steps_per_s": round(quota.speed, 3),
                "pace_steps_per_s": round(quota.pace, 3),
            }
            self.events.append(("leveling", fields))

    def _lag(self, held: Held) -> int:
        """Policy lag of a fragment at the next update, in updates."""
        return max(0, self.admission.next_update - held.fragment.policy_version.number)

    def _drop(self, token: int, book: IncarnationBook, entry: Entry, reason: str) -> None:
        """Free the bytes at once; the account moves when it is this sequence's turn."""
        self.credits.release(token, entry.nbytes)
        book.drop(entry, reason)
        self.dropped[reason] += entry.num_transitions
        self.events.append(("drop", {"reason": reason, "fragment": f"{book.sampler}/{entry.sequence}"}))
        # Where hardly anything is published, the sampler must not have to keep all that is dropped.
        if book.dropped_bytes * _EARLY_SETTLEMENT > self._config.stream.capacity_bytes:
            self._settle(book, book.account())

    def _drop_stale(self) -> bool:
        """What is too old by now won't get younger: check at use, and after every version."""
        dropped = False
        while (held := self.buffer.oldest()) is not None and self._lag(held) > self._max_lag:
            self.buffer.pop()
            self.admission.dropped(held.version)
            self._drop(held.token, held.book, held.entry, STALE)
            dropped = True
        return dropped

    def _settle(self, book: IncarnationBook, account: LearnerAccount) -> None:
        if book.settle(account):
            for stream in self.granting.streams.values():
                if stream.book is book:
                    stream.send(Settled(book.settled_through))


def _leveling(sampler: SamplerConfig) -> Leveling | None:
    if sampler.leveling == "off":
        return None
    return Leveling(fragment_steps=sampler.fragment_length, min_share=sampler.leveling_min_share)
