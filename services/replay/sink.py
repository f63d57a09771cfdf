"""Where hot tiers sink their fragments: credit out, each fragment once into Redis, settled when it is there.

gRPC's threads offer; one thread of its own writes, several chunks a round trip. While Redis can't be
written nothing more is granted, what was received waits within the credit it came on, and the writer asks
again and again, with backoff, until Redis is back.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.errors import HandshakeError, HeadraceError, InvalidDataError, UnavailableError
from headrace.events import OnEvent, no_event
from headrace.flow.credits import CreditPool
from headrace.flow.messages import Closed, Grant, Opened, Refused, Release, Settled, ToSampler
from headrace.flow.watermarks import Watermarks
from headrace.rpc.backoff import Backoff
from headrace.types import Fragment, PolicyVersion, SamplerIdentity
from services.replay.cold_shard import ColdShard
from services.replay.store import ChunkStore, StoreError
from services.replay.writer import WRITE_BYTES, WRITE_CHUNKS, ChunkWriter, Waiting

HIGH_WATERMARK = "high_watermark"
REDIS = "redis"
"""Why nothing is granted: Redis can't be written."""

_IDLE_S = 0.5
_BACKOFF_S = (0.1, 1.0)


@dataclass(slots=True, eq=False)
class _Book:
    """Progress of one incarnation. ``received_through`` counts what waits, ``settled_through`` doesn't."""

    sampler: SamplerIdentity
    received_through: int = -1
    settled_through: int = -1
    waiting: int = 0
    leaving: bool = False


@dataclass(slots=True, eq=False)
class _Stream:
    token: int
    book: _Book
    unit_bytes: int
    send: Callable[[ToSampler], None]
    granted: int = 0
    throttled_by: str = ""


@dataclass(frozen=True, slots=True)
class SinkCounts:
    """Of this process: chunks and bytes that came in; ``dropped``: transitions refused, by reason."""

    chunks: int = 0
    nbytes: int = 0
    duplicates: int = 0
    streams: int = 0
    waiting_bytes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)


class Sink:
    """An intake of fragments (:class:`headrace.rpc.fragments.Intake`). Thread-safe; offers never block.

    Invariants: bytes waiting and promised never exceed ``capacity_bytes``; a sequence of an incarnation is
    stored once, in order, gaps allowed; what is reported settled is in Redis or was refused.
    ``_changed`` guards everything in here and is notified when there is something to write. ``send`` of a
    stream is called under it. The shard's own lock is taken inside it, never the other way round.
    """

    def __init__(
        self,
        shard: ColdShard,
        store: ChunkStore,
        *,
        capacity_bytes: int,
        fragment_transitions: int,
        n_step: int,
        watermarks: Watermarks,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
        rng: np.random.Generator | None = None,
        on_event: OnEvent = no_event,
    ) -> None:
        """``grace_s``: seconds without its stream after which an incarnation counts as dead."""
        self._shard = shard
        self._store = store
        self._fragment_transitions = fragment_transitions
        self._writer = ChunkWriter(shard, store, n_step=n_step, on_event=on_event)
        self._grace_s = grace_s
        self._clock = clock
        self._on_event = on_event
        self._backoff = Backoff(*_BACKOFF_S, rng or np.random.default_rng())
        self._changed = threading.Condition()
        self._credits = CreditPool(capacity_bytes, watermarks)
        self._books: dict[SamplerIdentity, _Book] = {}
        self._streams: dict[int, _Stream] = {}
        self._absent: dict[SamplerIdentity, float] = {}  # since when
        self._queue: deque[Waiting] = deque()
        self._tokens = 0
        self._ready = False
        self._stopped = False
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self.fatal: HeadraceError | None = None
        """Why nothing is written any more; None: all is well."""
        self._thread = threading.Thread(target=self._run, name="sink-writer", daemon=True)

    def start(self) -> None:
        """Begin to take in: the shard has been restored."""
        now = self._clock()
        with self._changed:
            self._absent = dict.fromkeys(self._shard.present(), now)
            self._ready = True
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End all streams; write what waits, if Redis takes it within ``timeout_s`` seconds."""
        with self._changed:
            self._stopped = True
            for stream in list(self._streams.values()):
                self._end(stream, Closed("the replay partition is draining", draining=True))
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def counts(self) -> SinkCounts:
        """As they are now."""
        with self._changed:
            return SinkCounts(
                chunks=self._counts["chunks"],
                nbytes=self._counts["nbytes"],
                duplicates=self._counts["duplicates"],
                streams=len(self._streams),
                waiting_bytes=self._credits.buffered,
                dropped=dict(self._dropped),
            )

    # Streams.

    def open(
        self,
        sampler: SamplerIdentity,
        fragment_bytes: int,
        fragment_transitions: int,
        send: Callable[[ToSampler], None],
        *,
        next_sequence: int,
    ) -> Opened:
        """Begin a stream; ends any other of that ``sampler_id``, and an older incarnation's life.

        Raises UnavailableError (not ready or draining), HandshakeError (a newer incarnation is known, or the
        fragments are not this run's), ConfigurationError (no fragment fits).
        """
        with self._changed:
            if self._stopped or not self._ready:
                raise UnavailableError(
                    "the replay partition is " + ("draining" if self._stopped else "not ready")
                )
            newer = [
                known.incarnation
                for known in (*self._books, *self._shard.known())
                if known.sampler_id == sampler.sampler_id and known.incarnation > sampler.incarnation
            ]
            if newer:
                raise HandshakeError(f"{sampler} is superseded by incarnation {max(newer)}")
            if fragment_transitions != self._fragment_transitions:
                raise HandshakeError(
                    f"fragments of {fragment_transitions} transitions, but this run's have "
                    f"{self._fragment_transitions}"
                )
            token = self._tokens
            self._credits.join(token, fragment_bytes)
            self._tokens += 1
            self._supersede(sampler)
            book = self._books.get(sampler)
            if book is None:
                through = self._shard.received_through(sampler)
                book = self._books[sampler] = _Book(sampler, through, through)
            self._shard.readmit(sampler)
            self._absent.pop(sampler, None)
            book.leaving = False
            self._streams[token] = _Stream(token, book, fragment_bytes, send)
            self._grant()
            return Opened(token, book.settled_through, PolicyVersion(0, 0), paced=False)

    def offer_all(self, token: int, fragments: Sequence[tuple[Fragment, int]]) -> None:
        """Good fragments came in: to be stored, unless they are known already."""
        with self._changed:
            stream = self._stream(token)
            for fragment, nbytes in fragments:
                if fragment.id.sampler != stream.book.sampler:
                    raise InvalidDataError(f"fragment {fragment.id} on the stream of {stream.book.sampler}")
                self._take_in(stream, fragment.id.sequence, nbytes, fragment)
            self._grant()
            self._changed.notify_all()

    def refuse(
        self, token: int, sequence: int, num_transitions: int, nbytes: int, reason: str, detail: str
    ) -> None:
        """A bad fragment came in: it is settled in its turn."""
        with self._changed:
            stream = self._stream(token)
            if self._take_in(stream, sequence, nbytes, None):
                self._dropped[reason] += num_transitions
                stream.send(Refused(sequence, reason, detail))
            self._changed.notify_all()
        self._on_event("drop", reason=reason, fragment=f"{stream.book.sampler}/{sequence}")

    def report(self, token: int, produced: int, discarded: dict[str, int], backlog_bytes: int) -> None:
        """Of no use here: the learner or the directory counts what is produced."""

    def release(self, token: int, release: Release) -> None:
        """The hot tier has let go of fragments. InvalidDataError for priorities that are none."""
        with self._changed:
            sampler = self._stream(token).book.sampler
        self._shard.release(sampler, release.through, release.priorities)

    def goodbye(self, token: int, last_sequence: int) -> None:
        """The sampler leaves in order: once its stream ends, its copies are all there is."""
        with self._changed:
            self._stream(token).book.leaving = True

    def close(self, token: int) -> None:
        """The stream is gone. Idempotent."""
        with self._changed:
            stream = self._streams.get(token)
            if stream is None:
                return
            self._forget(stream)
            if stream.book.leaving:
                self._shard.release_incarnation(stream.book.sampler)
            else:
                self._absent[stream.book.sampler] = self._clock()
            self._grant()

    # Under the lock.

    def _stream(self, token: int) -> _Stream:
        stream = self._streams.get(token)
        if stream is None:
            raise UnavailableError("this stream has been ended")
        return stream

    def _forget(self, stream: _Stream) -> None:
        del self._streams[stream.token]
        self._credits.leave(stream.token)

    def _end(self, stream: _Stream, message: Closed) -> None:
        self._forget(stream)
        stream.send(message)

    def _supersede(self, sampler: SamplerIdentity) -> None:
        """End other streams of that name; older incarnations are dead."""
        for stream in list(self._streams.values()):
            other = stream.book.sampler
            if other.sampler_id == sampler.sampler_id:
                self._end(stream, Closed(f"{sampler} has opened a newer stream", draining=other == sampler))
        for other in self._shard.present():
            if other.sampler_id == sampler.sampler_id and other != sampler:
                self._shard.release_incarnation(other)
                self._absent.pop(other, None)

    def _take_in(self, stream: _Stream, sequence: int, nbytes: int, fragment: Fragment | None) -> bool:
        """Queue a fragment, unless it is a duplicate; whether it is new."""
        self._credits.arrived(stream.token, nbytes)
        book = stream.book
        if sequence <= book.received_through:
            self._credits.release(stream.token, nbytes)
            self._counts["duplicates"] += 1
            return False
        book.received_through = sequence
        book.waiting += 1
        self._queue.append(Waiting(book.sampler, sequence, nbytes, stream.token, fragment))
        return True

    def _grant(self) -> None:
        usable = not self._store.reason
        if usable:
            self._credits.share_out(self._streams)
        for stream in self._streams.values():
            total = self._credits.total(stream.token)
            able = self._credits.available(stream.token) >= stream.unit_bytes
            throttled_by = "" if able else (HIGH_WATERMARK if usable else REDIS)
            if total != stream.granted or throttled_by != stream.throttled_by:
                stream.granted, stream.throttled_by = total, throttled_by
                stream.send(Grant(total, (), throttled_by))

    def _settle(self, done: Sequence[Waiting]) -> None:
        """What was written, or refused, is settled; its bytes are free."""
        books = {}
        for one in done:
            self._credits.release(one.token, one.nbytes)
            book = self._books[one.sampler]
            book.settled_through = one.sequence
            book.waiting -= 1
            books[one.sampler] = book
        for stream in self._streams.values():
            if stream.book.sampler in books:
                stream.send(Settled(stream.book.settled_through))
        self._grant()

    # The writer.

    def _run(self) -> None:
        try:
            self._write_on()
        except Exception as error:  # a fault of ours must end the process, not leave samplers waiting
            self.fatal = HeadraceError(f"the sink failed: {error!r}")
            raise

    def _write_on(self) -> None:
        while True:
            batch = self._next_batch()
            self._give_up_the_absent()
            try:
                if self._writer.come_back():
                    with self._changed:
                        self._grant()
                nbytes = self._writer.write(batch)
                self._backoff.reset()
            except StoreError:
                with self._changed:
                    self._queue.extendleft(reversed(batch))
                    if self._stopped:
                        return  # samplers keep what is not settled
                    self._changed.wait(self._backoff.next_s())
                continue
            with self._changed:
                if batch:
                    self._counts["chunks"] += sum(one.fragment is not None for one in batch)
                    self._counts["nbytes"] += nbytes
                    self._settle(batch)
                if self._stopped and not self._queue:
                    return

    def _next_batch(self) -> list[Waiting]:
        """What to write next; empty after a moment of nothing."""
        with self._changed:
            if not self._queue and not self._stopped and not self._store.reason:
                self._changed.wait(_IDLE_S)
            batch: list[Waiting] = []
            size = 0
            while self._queue and len(batch) < WRITE_CHUNKS and (not batch or size < WRITE_BYTES):
                batch.append(self._queue.popleft())
                size += batch[-1].nbytes
            return batch

    def _give_up_the_absent(self) -> None:
        """Incarnations whose stream has been gone for too long are dead: their copies are all there is."""
        with self._changed:
            now = self._clock()
            dead = [sampler for sampler, since in self._absent.items() if now - since >= self._grace_s]
            for sampler in dead:
                del self._absent[sampler]
                self._shard.release_incarnation(sampler)
