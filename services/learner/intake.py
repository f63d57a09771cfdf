"""Where fragments come in: credit and permits out, one batch after the other to the trainer, nothing twice.

The rules are pure and live elsewhere (:mod:`headrace.flow`, and beside this file ``settlement``,
``buffer``, ``granting``, ``gate``); here they meet the threads: gRPC's threads offer, the trainer's take.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.config.sections import Config
from headrace.errors import HandshakeError, InvalidDataError, UnavailableError
from headrace.flow.admission import Admission
from headrace.flow.credits import CreditPool
from headrace.flow.ledger import MISSING
from headrace.flow.messages import Closed, Opened, Refused, Settled, ToSampler
from headrace.flow.watermarks import Watermarks
from headrace.types import Fragment, LearnerAccount, PolicyVersion, SamplerIdentity
from services.learner.buffer import FragmentBuffer, Held
from services.learner.gate import BatchGate
from services.learner.granting import Granting, Stream
from services.learner.settlement import Entry, IncarnationBook, SamplerReport
from services.learner.terms import batch_fragments, check_terms

STALE = "stale"

_EARLY_SETTLEMENT = 4  # dropped bytes of one incarnation beyond capacity / 4 are settled at once

OnEvent = Callable[..., None]
"""Hears ``(kind, **fields)``; :meth:`headrace.events.EventLog.emit` is one."""


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


class Intake:
    """The learner's door. Thread-safe; nothing but :meth:`next_batch` ever waits.

    Invariants: bytes held and promised never exceed ``stream.capacity_bytes``; a sequence of an
    incarnation is trained or dropped once; what is reported settled is in the accounts of a published
    version; no fragment with a policy lag above ``sync.max_policy_lag`` is handed out.

    :meth:`restore` comes first, then streams may open. ``_changed`` guards everything in here and is
    notified after every change. ``send`` of a stream is called under it, so that messages keep their
    order: it must not block and must not call back. ``on_event`` is called outside of it.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_event: OnEvent = lambda kind, **fields: None,
        resume_grace_s: float = 3.0,
    ) -> None:
        """``resume_grace_s``: no new permits for so many seconds after :meth:`restore`, or until all known
        samplers are back: what they resend comes first."""
        self._config = config
        self._max_lag = config.sync.max_policy_lag
        self._paced = config.sync.lag_control == "pace"
        self._batch_fragments = batch_fragments(config)
        self._resume_grace_s = resume_grace_s
        self._clock = clock
        self._on_event = on_event
        self._changed = threading.Condition()
        self._watermarks = Watermarks(config.stream.high_watermark, config.stream.low_watermark)
        self._credits = CreditPool(config.stream.capacity_bytes, self._watermarks)
        self._buffer = FragmentBuffer()
        self._books: dict[SamplerIdentity, IncarnationBook] = {}
        self._tokens = 0
        self._taken: deque[TakenBatch] = deque()
        self._frozen: list[LearnerAccount] | None = None  # as published with the oldest taken batch
        self._version: PolicyVersion | None = None
        self._awaited: set[str] = set()  # samplers of the restored accounts that are not back yet
        self._grace_ends = -math.inf
        self._stopped = False
        self._wait_reason = ""
        self._wait_seconds: defaultdict[str, float] = defaultdict(float)
        self._dropped: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._events: list[tuple[str, dict[str, Any]]] = []
        self._begin_from(0)

    # Start and end.

    def restore(self, accounts: Sequence[LearnerAccount], version: PolicyVersion) -> None:
        """Go on from a published version and its accounts; from now on streams may open."""
        with self._changing():
            self._books = {account.sampler: IncarnationBook.restored(account) for account in accounts}
            self._version = version
            self._begin_from(version.number)
            self._awaited = {account.sampler.sampler_id for account in accounts}
            self._grace_ends = self._clock() + self._resume_grace_s

    def stop(self) -> None:
        """End all streams (their samplers will reconnect) and every wait."""
        with self._changing():
            self._stopped = True
            for stream in list(self._granting.streams.values()):
                self._end(stream, Closed("the learner is draining", draining=True))

    # Streams.

    def open(
        self,
        sampler: SamplerIdentity,
        fragment_bytes: int,
        fragment_transitions: int,
        send: Callable[[ToSampler], None],
        *,
        next_sequence: int = 0,
    ) -> Opened:
        """Begin a stream. Ends any other stream of that ``sampler_id``.

        ``next_sequence`` is the first one not yet started: what lies between it and what is known here
        gets a place without a new permit. The first grant may be sent before this returns; the result
        is to be said first.

        Raises UnavailableError (not ready, or draining: try again), HandshakeError (a newer
        incarnation is known, or the fragments are not this run's), ConfigurationError (the buffer
        can't hold the fragments of one update), ExhaustedError (nor can it serve one more stream).
        """
        with self._changing():
            version = self._check_open(sampler, fragment_bytes, fragment_transitions)
            for other in list(self._granting.streams.values()):
                if other.book.sampler.sampler_id == sampler.sampler_id:
                    same = other.book.sampler == sampler
                    self._end(other, Closed(f"{sampler} has opened a newer stream", draining=same))
            book = self._books.setdefault(sampler, IncarnationBook(sampler))
            started = max(0, next_sequence - 1 - book.received_through)
            capacity = self._config.stream.capacity_bytes
            stream = Stream(self._tokens, book, fragment_bytes, send, book.received_through)
            self._tokens += 1
            self._granting.open(stream, started=min(started, capacity // fragment_bytes))
            self._awaited.discard(sampler.sampler_id)
            return Opened(stream.token, book.settled_through, version, self._paced)

    def offer(self, token: int, fragment: Fragment, nbytes: int) -> None:
        """A good fragment came in: held, or dropped if it is a duplicate or too old.

        Raises InvalidDataError if it was not covered by credit or is not this stream's,
        UnavailableError if the stream has been ended.
        """
        self.offer_all(token, [(fragment, nbytes)])

    def offer_all(self, token: int, fragments: Sequence[tuple[Fragment, int]]) -> None:
        """Several at once, in order, each with its bytes: one look at what may be granted for all of them."""
        with self._emitting(), self._changed:
            stream = self._stream(token)
            held = sum(self._take_in(stream, fragment, nbytes) for fragment, nbytes in fragments)
            # Where all are held, nothing was freed: nobody else can get more by it.
            self._grant(only=token if held == len(fragments) else None)
            if len(self._buffer) >= self._batch_fragments or self._config.stream.batch_deadline_s:
                self._changed.notify_all()

    def refuse(
        self, token: int, sequence: int, num_transitions: int, nbytes: int, reason: str, detail: str
    ) -> None:
        """A bad fragment came in: it is settled in its turn, dropped with ``reason``."""
        with self._changing():
            stream = self._stream(token)
            if not self._is_new(stream, sequence, nbytes):
                return
            entry = stream.book.receive(sequence, num_transitions, nbytes)
            self._admission.refused(token, stream.book.newest_version)
            stream.send(Refused(sequence, reason, detail))
            self._drop(token, stream.book, entry, reason)

    def report(self, token: int, produced: int, discarded: dict[str, int], backlog_bytes: int) -> None:
        """Counters of the sampler (transitions), and the bytes it has sealed but has no credit for."""
        with self._changing():
            stream = self._stream(token)
            stream.backlog_bytes = backlog_bytes
            stream.book.reported = SamplerReport(produced, dict(discarded), backlog_bytes)

    def goodbye(self, token: int, last_sequence: int) -> None:
        """The sampler leaves in order: nothing will come after ``last_sequence``."""
        with self._changing():
            stream = self._stream(token)
            stream.leaving = True
            self._admission.keep(token, max(0, last_sequence - stream.book.received_through))

    def close(self, token: int) -> None:
        """The stream is gone. What it brought stays; its credit and permits go to others. Idempotent."""
        with self._changing():
            stream = self._granting.streams.get(token)
            if stream is not None:
                self._granting.close(stream)

    # The trainer.

    def next_batch(self, *, timeout_s: float) -> TakenBatch | None:
        """The fragments of the next update; None after ``timeout_s`` seconds, or once stopped.

        May be called again before the last batch is committed: it is then about the update after it.
        """
        give_up = self._clock() + timeout_s
        with self._changing():
            while not self._stopped:
                batch, alarm = self._try_take()
                if batch is not None or self._clock() >= give_up:
                    return batch
                self._grant()
                self._wait_for_change(min(give_up, alarm))
        return None

    def accounts(self, including: TakenBatch | None = None) -> list[LearnerAccount]:
        """The accounts as they are once ``including`` (the oldest batch taken) is part of a version.

        :meth:`commit` settles exactly this result, so it is what has to be published. Asked again for
        the same batch, it is the same.
        """
        with self._changed:
            if including is None:
                return [book.account() for book in self._books.values()]
            self._check_oldest(including)
            if self._frozen is None:
                trained = frozenset(held.entry for held in including.held)
                self._frozen = [book.account(trained) for book in self._books.values()]
            return list(self._frozen)

    def commit(self, taken: TakenBatch, version: PolicyVersion) -> None:
        """``taken`` is part of the published ``version``: settle it, free its bytes, grant anew."""
        with self._changing():
            accounts = self.accounts(including=taken)
            self._admission.advance(version.number, consumed=True)
            self._taken.popleft()
            self._frozen = None
            for held in taken.held:
                self._credits.release(held.token, held.nbytes)
            for account in accounts:
                self._settle(self._books[account.sampler], account)
            self._version = version

    def advance(self, version: PolicyVersion) -> None:
        """A version was published without a batch (e.g. the same parameters in a new epoch)."""
        with self._changing():
            self._admission.advance(version.number, consumed=False)
            self._version = version

    # What can be observed.

    @property
    def wait_reason(self) -> str:
        """Why there is no next batch yet: "samplers", "straggler", "parameters", or "" if nobody waits."""
        return self._wait_reason

    @property
    def wait_seconds(self) -> dict[str, float]:
        """Seconds spent waiting in :meth:`next_batch` so far, by reason."""
        with self._changed:
            return dict(self._wait_seconds)

    @property
    def fill_ratio(self) -> float:
        """Bytes held over capacity, 0 to 1."""
        return self._credits.fill

    @property
    def num_streams(self) -> int:
        """Samplers connected."""
        return len(self._granting.streams)

    @property
    def num_held(self) -> int:
        """Fragments that wait to be taken."""
        return len(self._buffer)

    @property
    def throttle_entries(self) -> int:
        """How often the high watermark was reached."""
        return self._watermarks.entries

    @property
    def dropped(self) -> dict[str, int]:
        """Transitions this process has dropped, by reason."""
        with self._changed:
            return dict(self._dropped)

    @property
    def duplicates(self) -> int:
        """Fragments that came again and were recognised."""
        return self._counts["duplicates"]

    @property
    def reports(self) -> Mapping[SamplerIdentity, SamplerReport]:
        """What each incarnation has last said about itself."""
        with self._changed:
            return {sampler: book.reported for sampler, book in self._books.items() if book.reported}

    @property
    def gaps(self) -> int:
        """Fragments whose place in the sequence, or count of transitions, did not follow the one before."""
        return self._counts["gaps"]

    # Inside; the caller holds ``_changed``.

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock for a change; grant what it made possible and wake who waits."""
        with self._emitting(), self._changed:
            yield
            self._grant()
            self._changed.notify_all()

    @contextmanager
    def _emitting(self) -> Iterator[None]:
        """Tell of the events once the lock is free again."""
        try:
            yield
        finally:
            if self._events:
                with self._changed:
                    events, self._events = self._events, []
                for kind, fields in events:
                    self._on_event(kind, **fields)

    def _grant(self, *, only: int | None = None) -> None:
        """Give leave to send; ``only`` one stream, if nothing was freed."""
        if self._drop_stale():
            only = None
        in_grace = bool(self._awaited) and self._clock() < self._grace_ends
        self._granting.pump(hold_permits=in_grace, only=only)

    def _begin_from(self, version: int) -> None:
        """New admission from ``version`` on; only while no stream is open."""
        stream = self._config.stream
        self._admission = Admission(
            batch_fragments=self._batch_fragments, max_lag=self._max_lag, version=version
        )
        self._granting = Granting(self._credits, self._admission, paced=self._paced)
        self._gate = BatchGate(
            self._admission,
            batch_deadline_s=stream.batch_deadline_s,
            straggler_deadline_s=stream.straggler_deadline_s,
        )

    def _check_open(
        self, sampler: SamplerIdentity, fragment_bytes: int, fragment_transitions: int
    ) -> PolicyVersion:
        """Refuse a stream that can't work, in words; returns the version it starts from."""
        if self._stopped:
            raise UnavailableError("the learner is draining")
        if self._version is None:
            raise UnavailableError("the learner has no policy version yet")
        newest = max(
            (book.incarnation for book in self._books if book.sampler_id == sampler.sampler_id), default=0
        )
        if sampler.incarnation < newest:
            raise HandshakeError(f"{sampler} is superseded by incarnation {newest}")
        others = {stream.book.sampler.sampler_id for stream in self._granting.streams.values()}
        check_terms(
            self._config,
            fragment_bytes=fragment_bytes,
            transitions=fragment_transitions,
            streams=len(others | {sampler.sampler_id}),
        )
        return self._version

    def _stream(self, token: int) -> Stream:
        stream = self._granting.streams.get(token)
        if stream is None:
            raise UnavailableError("this stream has been ended")
        return stream

    def _end(self, stream: Stream, message: Closed) -> None:
        self._granting.close(stream)
        stream.send(message)

    def _take_in(self, stream: Stream, fragment: Fragment, nbytes: int) -> bool:
        """Hold a fragment, unless it is a duplicate or too old. Returns whether it is held."""
        book = stream.book
        if fragment.id.sampler != book.sampler:
            raise InvalidDataError(f"fragment {fragment.id} on the stream of {book.sampler}")
        if not self._is_new(stream, fragment.id.sequence, nbytes):
            return False
        entry = self._receive(book, fragment, nbytes)
        book.newest_version = max(book.newest_version, fragment.policy_version.number)
        held = Held(fragment, nbytes, stream.token, book, entry, book.newest_version)
        if self._lag(held) > self._max_lag:
            self._admission.refused(stream.token, held.version)
            self._drop(stream.token, book, entry, STALE)
            return False
        self._admission.arrived(stream.token, held.version)
        self._buffer.add(held)
        return True

    def _is_new(self, stream: Stream, sequence: int, nbytes: int) -> bool:
        """Charge the credit of a fragment; whether it is one that is not known yet."""
        self._credits.arrived(stream.token, nbytes)
        if sequence > stream.book.received_through:
            return True
        self._credits.release(stream.token, nbytes)
        stream.resent_through = sequence
        self._counts["duplicates"] += 1
        return False

    def _receive(self, book: IncarnationBook, fragment: Fragment, nbytes: int) -> Entry:
        """Enter a new fragment into its account; note if it does not follow the one before."""
        sequence, expected = fragment.id.sequence, book.received_through + 1
        entry = book.receive(sequence, fragment.num_transitions, nbytes, fragment.produced_through)
        if sequence != expected or fragment.produced_through != book.produced_through or entry.missing:
            self._counts["gaps"] += 1
            self._dropped[MISSING] += entry.missing
            self._events.append(("gap", {"fragment": str(fragment.id), "missing_transitions": entry.missing}))
        return entry

    def _lag(self, held: Held) -> int:
        """Policy lag of a fragment at the next update, in updates."""
        return max(0, self._admission.next_update - held.fragment.policy_version.number)

    def _drop(self, token: int, book: IncarnationBook, entry: Entry, reason: str) -> None:
        """Free the bytes at once; the account moves when it is this sequence's turn."""
        self._credits.release(token, entry.nbytes)
        book.drop(entry, reason)
        self._dropped[reason] += entry.num_transitions
        self._events.append(("drop", {"reason": reason, "fragment": f"{book.sampler}/{entry.sequence}"}))
        # Where hardly anything is published, the sampler must not have to keep all that is dropped.
        if book.dropped_bytes * _EARLY_SETTLEMENT > self._config.stream.capacity_bytes:
            self._settle(book, book.account())

    def _drop_stale(self) -> bool:
        """What is too old by now won't get younger: check at use, and after every version."""
        dropped = False
        while (held := self._buffer.oldest()) is not None and self._lag(held) > self._max_lag:
            self._buffer.pop()
            self._admission.dropped(held.version)
            self._drop(held.token, held.book, held.entry, STALE)
            dropped = True
        return dropped

    def _settle(self, book: IncarnationBook, account: LearnerAccount) -> None:
        if book.settle(account):
            for stream in self._granting.streams.values():
                if stream.book is book:
                    stream.send(Settled(book.settled_through))

    def _try_take(self) -> tuple[TakenBatch | None, float]:
        """The next batch if it may be taken, else when to look again."""
        now = self._clock()
        self._drop_stale()
        decision = self._gate.decide(
            now,
            held=len(self._buffer),
            is_low=self._watermarks.is_low(self._credits.fill),
            unable=self._granting.unable(),
        )
        for token, permit in decision.overdue:
            self._admission.lapse(token, permit)
            sampler = self._granting.streams[token].book.sampler
            self._events.append(("straggler", {"sampler": str(sampler), "permit": permit.index}))
        self._wait_reason = decision.reason
        if not decision.count:
            grace = self._grace_ends if self._awaited and self._grace_ends > now else math.inf
            return None, min(decision.alarm, grace)
        held = sorted(self._buffer.pop(decision.count), key=lambda one: one.fragment.id)
        batch = TakenBatch([one.fragment for one in held], tuple(self._lag(one) for one in held), tuple(held))
        self._admission.take(one.version for one in held)
        self._gate.taken()
        self._taken.append(batch)
        return batch, math.inf

    def _wait_for_change(self, until: float) -> None:
        began = self._clock()
        self._changed.wait(max(0.0, until - began))
        self._wait_seconds[self._wait_reason] += self._clock() - began

    def _check_oldest(self, taken: TakenBatch) -> None:
        if not self._taken or self._taken[0] is not taken:
            raise ValueError("batches are published in the order in which they were taken")
