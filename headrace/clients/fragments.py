"""Sending fragments: one stream, reopened whenever it breaks, nothing lost and nothing sent twice for good.

The producer's thread asks for leave (:meth:`FragmentSender.acquire`), acts, and hands the fragment
over (:meth:`FragmentSender.send`). A background thread keeps the stream; gRPC's own thread pulls
messages out of it, so encoding and the transport's back-pressure cost the producer nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import grpc
import numpy as np
import numpy.typing as npt

from headrace.clients.fragment_stream import FragmentStream, Outgoing, Report, StreamTerms
from headrace.clients.outbox import Outbox, Ticket
from headrace.codec.control import Response, Welcome
from headrace.errors import HeadraceError, InvalidDataError
from headrace.flow.messages import Grant, Refused, Release, Settled
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import is_loopback, open_channel
from headrace.rpc.errors import error_of, is_fatal
from headrace.rpc.handshake import Handshake
from headrace.types import Fragment, SamplerIdentity

_BACKOFF_S = (0.05, 1.0)
_POLL_S = 0.002  # parameters arrive elsewhere, so waiting for them means looking
_MAX_REFUSED_STREAMS = 3  # streams in a row that the receiver ended because of what we sent

_NOT_SHARED = (
    "can't map our memory (another node, another container, or not Linux): stream.codec is shared_memory, "
    "but fragments travel over the stream"
)

OnEvent = Callable[[str, str], None]
"""Hears (kind, sentence) of what the connection goes through, for logs and events."""


class FragmentSender:
    """Delivers the fragments of one sampler incarnation, in order, until each is settled.

    Every sealed fragment is kept until the receiver reports it settled; after a lost connection
    (retried for ever, with backoff and jitter) everything unsettled is sent again before anything new.
    What is held is bounded by the receiver's grants. ``fatal`` says why it gave up: the two ends don't
    belong together, or the receiver refuses what we send.

    ``slab_bytes`` is the memory to share if ``codec`` is "shared_memory" and both ends are on one node.
    ``checksum``: payloads carry a CRC-32; None: where they cross a real network (on the loopback they never
    leave memory, and it would cost as much CPU as everything else of ours).
    ``gaps``: sequences may be left out, for a receiver that allows it (the sink of replay).

    ``_changed`` guards the outbox, what is outgoing besides it, the timers and ``fatal``; it is notified
    whenever one of them changes.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        identity: SamplerIdentity,
        *,
        fragment_bytes: int,
        fragment_transitions: int,
        codec: str = "protobuf",
        message_bytes: int = 2**20,
        slab_bytes: int = 2**26,
        checksum: bool | None = None,
        gaps: bool = False,
        clock: Callable[[], float] = time.monotonic,
        on_event: OnEvent = lambda _kind, _sentence: None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._address = address
        self._terms = StreamTerms(
            handshake=handshake,
            identity=identity,
            fragment_bytes=fragment_bytes,
            fragment_transitions=fragment_transitions,
            codec=codec,
            message_bytes=message_bytes,
            slab_bytes=slab_bytes,
            checksum=not is_loopback(address) if checksum is None else checksum,
        )
        self._clock = clock
        self._on_event = on_event
        self._backoff = Backoff(*_BACKOFF_S, rng or np.random.default_rng())
        self._changed = threading.Condition()
        self._outbox = Outbox(fragment_bytes, gaps=gaps)
        self._wait_reason = ""
        self._wait_seconds: dict[str, float] = {}
        self._outgoing = Outgoing()
        self._closed = False
        self._fatal: HeadraceError | None = None
        self._refused_streams = 0
        self._refused: dict[str, int] = {}
        self._stream: FragmentStream | None = None
        self._thread = threading.Thread(target=self._run, name="fragment-sender", daemon=True)

    # The producer.

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def acquire(self, *, acting_version: Callable[[], int], timeout_s: float) -> Ticket | None:
        """Wait for leave to act one fragment; None after ``timeout_s`` seconds or once ``fatal`` is set.

        ``acting_version`` gives the newest version number the producer could act with (-1: none yet).
        """
        deadline = self._clock() + timeout_s
        with self._changed:
            while self._fatal is None and not self._closed:
                reason = self._outbox.blocked_by(acting_version())
                self._wait_reason = reason
                if not reason:
                    return self._outbox.take_ticket()
                left = deadline - self._clock()
                if left <= 0:
                    return None
                self._wait(reason, min(left, _POLL_S) if reason == "parameters" else left)
            return None

    def send(self, fragment: Fragment) -> None:
        """Hand over the fragment that a ticket was acquired for. Never blocks.

        Its arrays must not change from now on: they are the resend buffer.
        """
        with self._changed:
            self._outbox.add(fragment)
            self._changed.notify_all()

    def report(self, produced: int, discarded: Mapping[str, int]) -> None:
        """Tell the receiver the incarnation's cumulative counts; sent at most once a second."""
        with self._changed:
            self._outgoing.report = Report(produced, dict(discarded))
            self._changed.notify_all()

    def release(self, through: int, priorities: npt.NDArray[np.float32] | None = None) -> None:
        """Tell a replay partition that the hot tier has let go of every fragment up to ``through``.

        ``priorities`` ``[T * B]`` are the newest ones of that fragment. The fact survives a lost
        connection; priorities on their way may be lost with it.
        """
        with self._changed:
            self._outgoing.release(Release(through, priorities))
            self._changed.notify_all()

    def drain(self, reason: str, deadline_s: float) -> bool:
        """Send what is left, say goodbye, wait until all is settled and the receiver has hung up.

        Returns whether all is settled; after ``deadline_s`` seconds it returns in any case.
        """
        deadline = self._clock() + deadline_s
        with self._changed:
            self._outbox.abandon()
            self._outgoing.goodbye = reason or "drain"
            self._changed.notify_all()
            while not self._closed and self._fatal is None and not self._left():
                left = deadline - self._clock()
                if left <= 0:
                    break
                self._wait("drain", left)
            return not self._outbox.unsettled_bytes

    def close(self) -> None:
        """End the stream and its thread. What is unsettled is forgotten. Idempotent."""
        with self._changed:
            self._closed = True
            stream = self._stream
            self._changed.notify_all()
        if stream is not None:
            stream.cancel()
        if self._thread.is_alive():
            self._thread.join(5.0)

    @property
    def wait_reason(self) -> str:
        """Why the producer may not act right now: "connection", "permit", "credit", "parameters" or ""."""
        return self._wait_reason

    @property
    def wait_seconds(self) -> dict[str, float]:
        """Seconds the producer has waited so far, by reason."""
        with self._changed:
            return dict(self._wait_seconds)

    @property
    def settled_through(self) -> int:
        """Highest sequence settled, -1: none."""
        return self._outbox.settled_through

    @property
    def unsettled_bytes(self) -> int:
        """Bytes of the fragments that are kept for a resend."""
        return self._outbox.unsettled_bytes

    @property
    def refused(self) -> dict[str, int]:
        """Fragments the receiver refused, by reason."""
        with self._changed:
            return dict(self._refused)

    @property
    def fatal(self) -> HeadraceError | None:
        """Why it gave up for good; None while it has not."""
        return self._fatal

    def _left(self) -> bool:
        """Whether nothing keeps us here: all settled, and no stream that still has to end."""
        return not self._outbox.unsettled_bytes and not self._outbox.open

    def _wait(self, reason: str, timeout_s: float) -> None:
        """Wait for a change, on the account of ``reason``. The caller holds ``_changed``."""
        began = self._clock()
        self._changed.wait(timeout_s)
        self._wait_seconds[reason] = self._wait_seconds.get(reason, 0.0) + self._clock() - began

    # The background thread.

    def _run(self) -> None:
        try:
            while not self._closed:
                error = self._hold_stream()
                if self._closed or (self._outgoing.goodbye and not self._outbox.unsettled_bytes):
                    return
                if self._gives_up(error):
                    self._fail(error)
                    return
                pause = self._backoff.after(error)
                if pause.loud:
                    self._on_event("disconnected", f"{error}; trying again until it answers")
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, pause.seconds)
        except Exception as error:  # a fault of ours must end the sampler, not leave it waiting for ever
            self._fail(HeadraceError(f"the sender of fragments failed: {error!r}"))
            raise

    def _hold_stream(self) -> HeadraceError:
        """Open a stream and follow it until it ends; returns why it ended."""
        channel = open_channel(self._address)
        stream = FragmentStream(
            channel, self._terms, self._changed, self._outbox, self._outgoing, self._clock
        )
        with self._changed:
            self._stream = stream
            closed = self._closed
        if closed:  # it could not yet know of this stream
            stream.cancel()
        try:
            for message in stream.responses():
                self._receive(stream, message)
            return HeadraceError("the receiver ended the stream")
        except grpc.RpcError as error:
            return error_of(error)
        finally:
            with self._changed:
                self._stream = None
                self._outbox.lost()
                self._changed.notify_all()
            stream.cancel()
            channel.close()

    def _receive(self, stream: FragmentStream, message: Response) -> None:
        with self._changed:
            match message:
                case Welcome():
                    shared = stream.welcomed(message)
                    self._outbox.opened(message.settled_through, message.paced)
                    self._backoff.reset()
                case Grant():
                    self._outbox.grant(message)
                case Settled():
                    self._outbox.settle(message.through)
                    self._refused_streams = 0
                case Refused():
                    self._refused[message.reason] = self._refused.get(message.reason, 0) + 1
            self._changed.notify_all()
        if isinstance(message, Welcome):
            self._on_event("connected", f"{self._address}, settled through {message.settled_through}")
            if not shared:
                self._on_event("fallback", f"{self._address} {_NOT_SHARED}")
        elif isinstance(message, Refused):
            self._on_event("refused", f"fragment {message.sequence}: {message.reason}: {message.detail}")

    def _gives_up(self, error: HeadraceError) -> bool:
        if isinstance(error, InvalidDataError):
            self._refused_streams += 1
        return is_fatal(error) or self._refused_streams >= _MAX_REFUSED_STREAMS

    def _fail(self, error: HeadraceError) -> None:
        with self._changed:
            self._fatal = error
            self._changed.notify_all()
        self._on_event("fatal", str(error))
