"""One open stream of fragments: what goes out next, and when."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from headrace.clients.messages import identity_to_proto
from headrace.clients.outbox import Outbox
from headrace.codec import EncodedPart, encode_parts, join_request, part_cost
from headrace.codec.control import (
    Response,
    Welcome,
    read_response,
    write_goodbye,
    write_release,
    write_report,
)
from headrace.codec.parts import WriteSlab
from headrace.codec.slab import SlabWriter, make_slab
from headrace.flow.messages import Release
from headrace.rpc.handshake import Handshake
from headrace.types import Fragment, SamplerIdentity
from headrace.v1 import trajectory_pb2

METHOD = "/headrace.v1.TrajectoryService/StreamFragments"
_REPORT_EVERY_S = 1.0
_SLAB_MESSAGES = 8  # a descriptor is small, so one message may announce this much more
_MAX_RELEASES = 1024
_IDLE_S = 1.0  # longest sleep of the sending side before it looks whether the stream still lives


@dataclass(frozen=True, slots=True)
class StreamTerms:
    """What a sender says when it opens a stream, and how it writes fragments."""

    handshake: Handshake
    identity: SamplerIdentity
    fragment_bytes: int
    fragment_transitions: int
    codec: str
    message_bytes: int
    slab_bytes: int
    checksum: bool

    def open_request(self, next_sequence: int, slab: SlabWriter | None) -> bytes:
        """The first message of a stream."""
        request = trajectory_pb2.OpenStream(
            handshake=self.handshake.to_proto(),
            sampler=identity_to_proto(self.identity),
            fragment_bytes=self.fragment_bytes,
            fragment_transitions=self.fragment_transitions,
            next_sequence=next_sequence,
            slab=slab.describe() if slab is not None else None,
        )
        return trajectory_pb2.StreamFragmentsRequest(open=request).SerializeToString()


@dataclass(frozen=True, slots=True)
class Report:
    """Cumulative counts of an incarnation, for the receiver's ledger."""

    produced: int
    discarded: dict[str, int]


@dataclass(slots=True)
class Outgoing:
    """What there is to say besides fragments. Guarded by the sender's condition."""

    report: Report | None = None
    goodbye: str = ""
    released_through: int = -1
    releases: deque[Release] = field(default_factory=lambda: deque(maxlen=_MAX_RELEASES))

    def release(self, release: Release) -> None:
        """Queue one; of too many the oldest is forgotten, which a later one includes."""
        self.released_through = max(self.released_through, release.through)
        self.releases.append(release)


class FragmentStream:
    """A stream from open to end. gRPC's thread pulls requests; the sender's thread reads responses.

    Small fragments that wait together leave together, in one message of at most ``message_bytes``;
    nothing is held back to wait for company. ``changed`` is the sender's condition: it guards
    ``outbox``, ``outgoing`` and ``_ended``.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        terms: StreamTerms,
        changed: threading.Condition,
        outbox: Outbox,
        outgoing: Outgoing,
        clock: Callable[[], float],
    ) -> None:
        self._terms = terms
        self._changed = changed
        self._outbox = outbox
        self._outgoing = outgoing
        self._clock = clock
        self._ended = False
        self._reported: tuple[Report | None, int] = (None, 0)
        self._reported_at = clock() - _REPORT_EVERY_S
        self._said_released = False
        self._said_goodbye = False
        self._slab = make_slab(terms.slab_bytes if terms.codec == "shared_memory" else 0)
        self._write_slab: WriteSlab | None = None
        self._take_bytes = terms.message_bytes
        call = channel.stream_stream(METHOD, request_serializer=None, response_deserializer=read_response)
        self._call: Any = call(self._requests())

    def responses(self) -> Iterator[Response]:
        """What the receiver says, until the stream ends. Raises grpc.RpcError."""
        return iter(self._call)

    def welcomed(self, welcome: Welcome) -> bool:
        """Take note of the receiver's terms; whether it shares memory as far as asked to."""
        if self._slab is not None and welcome.shared_memory:
            self._write_slab = self._slab.write
            self._take_bytes = _SLAB_MESSAGES * self._terms.message_bytes
        return self._terms.codec != "shared_memory" or self._write_slab is not None

    def cancel(self) -> None:
        """End the stream at once."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            if self._slab is not None:
                self._slab.close()
        self._call.cancel()

    def _requests(self) -> Iterator[bytes]:
        with self._changed:
            next_sequence = self._outbox.next_sequence
        yield self._terms.open_request(next_sequence, self._slab)
        while True:
            with self._changed:
                fragments, control = self._next()
            if control is not None:
                yield control
            elif fragments:
                yield from self._messages(fragments)
            else:
                return

    def _next(self) -> tuple[list[Fragment], bytes | None]:
        """Wait for something to send; nothing at all: there won't be. The caller holds ``_changed``."""
        while not self._ended and not (self._said_goodbye and not self._outbox.unsettled_bytes):
            fragments = self._outbox.take_sendable(self._take_bytes)
            if fragments:
                return fragments, None
            control, wait_s = self._next_control()
            if control is not None:
                return [], control
            self._changed.wait(wait_s)
        return [], None

    def _next_control(self) -> tuple[bytes | None, float]:
        """A release, report or goodbye that is due, or None and how long to wait for one."""
        outbox, outgoing = self._outbox, self._outgoing
        if not outbox.open:
            return None, _IDLE_S
        if not self._said_released and outgoing.released_through >= 0:  # earlier streams' may be lost
            self._said_released = True
            return write_release(Release(outgoing.released_through)), 0.0
        if outgoing.releases:
            return write_release(outgoing.releases.popleft()), 0.0
        leaving = bool(outgoing.goodbye) and not self._said_goodbye
        wait_s = _IDLE_S
        state = (outgoing.report, outbox.unsent_bytes)
        if state != self._reported:
            # Bytes that are sealed but not covered by credit are what the receiver must hear of at once:
            # it counts on fragments of the nominal size.
            urgent = leaving or outbox.unsent_bytes > self._reported[1]
            due_s = 0.0 if urgent else self._reported_at + _REPORT_EVERY_S - self._clock()
            if due_s <= 0:
                self._reported = state
                self._reported_at = self._clock()
                report = outgoing.report or Report(0, {})
                return write_report(report.produced, report.discarded, outbox.unsent_bytes), 0.0
            wait_s = due_s
        if leaving and outbox.all_sent:
            self._said_goodbye = True
            return write_goodbye(outgoing.goodbye, outbox.last_sequence), 0.0
        return None, wait_s

    def _messages(self, fragments: list[Fragment]) -> Iterator[bytes]:
        """Encode in order: large fragments in messages of their own, small ones together."""
        waiting: list[EncodedPart] = []
        size = 0
        for fragment in fragments:
            parts = encode_parts(
                fragment,
                self._terms.codec,
                self._terms.message_bytes,
                checksum=self._terms.checksum,
                write_slab=self._write_slab,
            )
            cost = part_cost(parts[0])
            if waiting and (len(parts) > 1 or size + cost > self._terms.message_bytes):
                yield join_request(waiting)
                waiting, size = [], 0
            if len(parts) > 1:
                for part in parts:
                    yield join_request([part])
            else:
                waiting.append(parts[0])
                size += cost
        if waiting:
            yield join_request(waiting)
