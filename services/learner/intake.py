"""Where fragments come in: credit and permits out, one batch after the other to the trainer, nothing twice.

The rules know no threads and live elsewhere (:mod:`headrace.flow`, and beside this file ``stock``,
``settlement``, ``buffer``, ``granting``, ``gate``); here they meet them: gRPC's threads offer, the
trainer's takes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from headrace.config.sections import Config
from headrace.errors import HandshakeError, UnavailableError
from headrace.flow.messages import Closed, Opened, ToSampler
from headrace.types import Fragment, LearnerAccount, PolicyVersion, SamplerIdentity
from services.learner.granting import Stream
from services.learner.settlement import IncarnationBook, SamplerReport
from services.learner.stock import Stock, TakenBatch
from services.learner.terms import check_terms

OnEvent = Callable[..., None]
"""Hears ``(kind, **fields)``; :meth:`headrace.events.EventLog.emit` is one."""


class Intake:
    """The learner's door. Thread-safe; nothing but :meth:`next_batch` ever waits.

    Invariants: those of :class:`Stock`; what is reported settled is in the accounts of a published version.

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
        self._resume_grace_s = resume_grace_s
        self._clock = clock
        self._on_event = on_event
        self._changed = threading.Condition()
        self._stock = Stock(config)
        self._tokens = 0
        self._version: PolicyVersion | None = None
        self._awaited: set[str] = set()  # samplers of the restored accounts that are not back yet
        self._grace_ends = -math.inf
        self._stopped = False
        self._wait_reason = ""
        self._wait_seconds: defaultdict[str, float] = defaultdict(float)

    # Start and end.

    def restore(self, accounts: Sequence[LearnerAccount], version: PolicyVersion) -> None:
        """Go on from a published version and its accounts; from now on streams may open."""
        with self._changing():
            self._stock.restore(accounts, version.number)
            self._version = version
            self._awaited = {account.sampler.sampler_id for account in accounts}
            self._grace_ends = self._clock() + self._resume_grace_s

    def stop(self) -> None:
        """End all streams (their samplers will reconnect) and every wait."""
        with self._changing():
            self._stopped = True
            for stream in list(self._streams.values()):
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
            for other in list(self._streams.values()):
                if other.book.sampler.sampler_id == sampler.sampler_id:
                    same = other.book.sampler == sampler
                    self._end(other, Closed(f"{sampler} has opened a newer stream", draining=same))
            book = self._stock.books.setdefault(sampler, IncarnationBook(sampler))
            started = max(0, next_sequence - 1 - book.received_through)
            capacity = self._config.stream.capacity_bytes
            stream = Stream(self._tokens, book, fragment_bytes, send, book.received_through)
            self._tokens += 1
            self._stock.granting.open(stream, started=min(started, capacity // fragment_bytes))
            self._awaited.discard(sampler.sampler_id)
            return Opened(
                stream.token, book.settled_through, version, self._config.sync.lag_control == "pace"
            )

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
            held = sum(self._stock.receive(stream, fragment, nbytes) for fragment, nbytes in fragments)
            # Where all are held, nothing was freed: nobody else can get more by it.
            self._grant(only=token if held == len(fragments) else None)
            enough = len(self._stock.buffer) >= self._stock.batch_fragments
            if enough or self._config.stream.batch_deadline_s:
                self._changed.notify_all()

    def refuse(
        self, token: int, sequence: int, num_transitions: int, nbytes: int, reason: str, detail: str
    ) -> None:
        """A bad fragment came in: it is settled in its turn, dropped with ``reason``."""
        with self._changing():
            self._stock.refuse(self._stream(token), sequence, num_transitions, nbytes, reason, detail)

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
            self._stock.admission.keep(token, max(0, last_sequence - stream.book.received_through))

    def close(self, token: int) -> None:
        """The stream is gone. What it brought stays; its credit and permits go to others. Idempotent."""
        with self._changing():
            stream = self._streams.get(token)
            if stream is not None:
                self._stock.granting.close(stream)

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
            return self._stock.accounts(including)

    def commit(self, taken: TakenBatch, version: PolicyVersion) -> None:
        """``taken`` is part of the published ``version``: settle it, free its bytes, grant anew."""
        with self._changing():
            self._stock.commit(taken, version.number)
            self._version = version

    def set_updates(self, updates: int) -> None:
        """From now on a batch is for so many updates."""
        with self._changing():
            self._stock.set_updates(updates)

    def discard(self, taken: TakenBatch, version: PolicyVersion, reason: str) -> None:
        """``taken`` is part of no version, and ``version`` is the newest: drop it for ``reason``."""
        with self._changing():
            self._stock.discard(taken, version.number, reason)
            self._version = version

    def advance(self, version: PolicyVersion) -> None:
        """A version was published without a batch (e.g. the same parameters in a new epoch)."""
        with self._changing():
            self._stock.admission.advance(version.number, consumed=False)
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
        return self._stock.credits.fill

    @property
    def num_streams(self) -> int:
        """Samplers connected."""
        return len(self._streams)

    @property
    def num_held(self) -> int:
        """Fragments that wait to be taken."""
        return len(self._stock.buffer)

    @property
    def throttle_entries(self) -> int:
        """How often the high watermark was reached."""
        return self._stock.watermarks.entries

    @property
    def dropped(self) -> dict[str, int]:
        """Transitions this process has dropped, by reason."""
        with self._changed:
            return dict(self._stock.dropped)

    @property
    def duplicates(self) -> int:
        """Fragments that came again and were recognised."""
        return self._stock.counts["duplicates"]

    @property
    def reports(self) -> Mapping[SamplerIdentity, SamplerReport]:
        """What each incarnation has last said about itself."""
        with self._changed:
            books = self._stock.books
            return {sampler: book.reported for sampler, book in books.items() if book.reported}

    @property
    def gaps(self) -> int:
        """Fragments whose place in the sequence, or count of transitions, did not follow the one before."""
        return self._stock.counts["gaps"]

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
            if self._stock.events:
                with self._changed:
                    events, self._stock.events = self._stock.events, []
                for kind, fields in events:
                    self._on_event(kind, **fields)

    def _grant(self, *, only: int | None = None) -> None:
        """Give leave to send; ``only`` one stream, if nothing was freed."""
        in_grace = bool(self._awaited) and self._clock() < self._grace_ends
        self._stock.grant(hold_permits=in_grace, only=only)

    @property
    def _streams(self) -> dict[int, Stream]:
        return self._stock.granting.streams

    def _check_open(
        self, sampler: SamplerIdentity, fragment_bytes: int, fragment_transitions: int
    ) -> PolicyVersion:
        """Refuse a stream that can't work, in words; returns the version it starts from."""
        if self._stopped:
            raise UnavailableError("the learner is draining")
        if self._version is None:
            raise UnavailableError("the learner has no policy version yet")
        newest = max(
            (book.incarnation for book in self._stock.books if book.sampler_id == sampler.sampler_id),
            default=0,
        )
        if sampler.incarnation < newest:
            raise HandshakeError(f"{sampler} is superseded by incarnation {newest}")
        others = {stream.book.sampler.sampler_id for stream in self._streams.values()}
        check_terms(
            self._config,
            fragment_bytes=fragment_bytes,
            transitions=fragment_transitions,
            streams=len(others | {sampler.sampler_id}),
        )
        return self._version

    def _stream(self, token: int) -> Stream:
        stream = self._streams.get(token)
        if stream is None:
            raise UnavailableError("this stream has been ended")
        return stream

    def _end(self, stream: Stream, message: Closed) -> None:
        self._stock.granting.close(stream)
        stream.send(message)

    def _try_take(self) -> tuple[TakenBatch | None, float]:
        """The next batch if it may be taken, else when to look again."""
        now = self._clock()
        batch, decision = self._stock.try_take(now)
        self._wait_reason = decision.reason
        if batch is not None:
            return batch, math.inf
        grace = self._grace_ends if self._awaited and self._grace_ends > now else math.inf
        return None, min(decision.alarm, grace)

    def _wait_for_change(self, until: float) -> None:
        began = self._clock()
        self._changed.wait(max(0.0, until - began))
        self._wait_seconds[self._wait_reason] += self._clock() - began
