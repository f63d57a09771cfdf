"""TrajectoryService: decode, check at the door, hand to an intake, say what it answers.

The receiving half of :mod:`headrace.clients.fragments`, for everyone who takes fragments: the learner, and
the sink of replay.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import grpc

from headrace.codec import Damaged, FragmentAssembler
from headrace.codec.control import Welcome, read_release, write_response
from headrace.codec.decode import Received
from headrace.codec.slab import SlabReader
from headrace.errors import CodecError, InvalidDataError
from headrace.flow.messages import Opened, Release, ToSampler
from headrace.rpc import handshake
from headrace.rpc.errors import answering
from headrace.rpc.handshake import Handshake
from headrace.rpc.mailbox import Mailbox
from headrace.rpc.merging import listen
from headrace.types import Fragment, SamplerIdentity
from headrace.v1 import trajectory_pb2

SERVICE = "headrace.v1.TrajectoryService"
HANDSHAKE_S = 10.0  # a peer that opens a stream and says nothing for so long is cut
_IDLE_S = 1.0
_GATHER_S = 0.01  # credit is ahead of need by far more than this, so acknowledgements can go together
_MAX_ID_BYTES = 128


class Intake(Protocol):
    """Where fragments go. Thread-safe, never blocks."""

    def open(
        self,
        sampler: SamplerIdentity,
        fragment_bytes: int,
        fragment_transitions: int,
        send: Callable[[ToSampler], None],
        *,
        next_sequence: int,
    ) -> Opened:
        """A sampler's stream begins; ``send`` reaches it at any time until :meth:`close`."""
        ...

    def offer_all(self, token: int, fragments: Sequence[tuple[Fragment, int]]) -> None:
        """Good fragments came in, in this order, each with its bytes."""
        ...

    def refuse(
        self, token: int, sequence: int, num_transitions: int, nbytes: int, reason: str, detail: str
    ) -> None:
        """A bad fragment came in; it counts as settled with ``reason``."""
        ...

    def report(self, token: int, produced: int, discarded: dict[str, int], backlog_bytes: int) -> None:
        """Counters of the sampler."""
        ...

    def goodbye(self, token: int, last_sequence: int) -> None:
        """The sampler leaves in order."""
        ...

    def close(self, token: int) -> None:
        """The stream is gone."""
        ...


Check = Callable[[Fragment], tuple[str, str] | None]
"""None for a good fragment, else what is wrong: one of the ledger's reasons, and a sentence."""

OnRelease = Callable[[int, Release], None]
"""Hears ``(token, release)``."""


class TrajectoryServicer:
    """Streams of fragments. Two threads a stream: gRPC's own one speaks, one of ours listens."""

    def __init__(
        self,
        intake: Intake,
        own: Handshake,
        *,
        max_fragment_bytes: int,
        check: Check,
        on_release: OnRelease | None = None,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """``on_release`` None: this receiver has no use for releases, and refuses them."""
        self._on_release = on_release
        self._intake = intake
        self._own = own
        self._max_fragment_bytes = max_fragment_bytes
        self._check = check
        self._handshake_s = handshake_s

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What a server has to be given. Messages stay bytes: the codec reads and writes them."""
        method = grpc.stream_stream_rpc_method_handler(self.stream_fragments)
        return grpc.method_handlers_generic_handler(SERVICE, {"StreamFragments": method})

    def stream_fragments(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """rpc StreamFragments."""
        mailbox = Mailbox()
        assembler = FragmentAssembler(self._max_fragment_bytes)
        reader = _Reader(
            self._intake, self._own, self._check, assembler, mailbox, on_release=self._on_release
        )
        threading.Thread(target=reader.run, args=(requests,), name="fragment-reader", daemon=True).start()
        with answering(context):
            messages = mailbox.take(self._handshake_s)
            if messages == []:
                context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED, f"no OpenStream within {self._handshake_s:g} s"
                )
            while messages is not None and context.is_active():
                yield from map(write_response, messages)
                mailbox.pause(_GATHER_S)
                messages = mailbox.take(_IDLE_S)


class _Reader:
    """Reads one stream, in a thread of its own: decodes, checks, hands over."""

    def __init__(
        self,
        intake: Intake,
        own: Handshake,
        check: Check,
        assembler: FragmentAssembler,
        mailbox: Mailbox,
        *,
        on_release: OnRelease | None,
    ) -> None:
        self._on_release = on_release
        self._intake = intake
        self._own = own
        self._check = check
        self._assembler = assembler
        self._mailbox = mailbox
        self._sampler: SamplerIdentity | None = None
        self._token = -1
        self._good: list[tuple[Fragment, int]] = []

    def run(self, requests: Iterator[bytes]) -> None:
        """Read until the peer ends, breaks the contract, or is gone."""
        listen(requests, self._feed, self._mailbox, who="the receiver", gone=self._gone)

    def _feed(self, data: bytes) -> None:
        for received in self._assembler.feed(data):
            self._handle(received)
        self._hand_over()

    def _gone(self) -> None:
        if self._sampler is not None:
            self._intake.close(self._token)

    def _handle(self, received: Received) -> None:
        if self._sampler is None:
            if not isinstance(received, trajectory_pb2.OpenStream):
                raise InvalidDataError("the first message of a stream must be OpenStream")
            self._open(received)
            return
        match received:
            case Fragment():
                self._take(received)
            case Damaged():
                self._own_fragment(received.id.sampler)
                self._refuse(received, received.nbytes, "checksum", received.detail)
            case trajectory_pb2.SamplerReport():
                discarded = dict(received.discarded)
                self._intake.report(self._token, received.produced, discarded, received.backlog_bytes)
            case trajectory_pb2.Goodbye():
                self._intake.goodbye(self._token, received.last_sequence)
            case trajectory_pb2.Release():
                if self._on_release is None:
                    raise InvalidDataError("a release, but there is no replay here")
                self._hand_over()  # what came before it
                self._on_release(self._token, read_release(received))
            case trajectory_pb2.OpenStream():
                raise InvalidDataError("a stream is opened once")

    def _open(self, message: trajectory_pb2.OpenStream) -> None:
        handshake.check(self._own, Handshake.from_proto(message.handshake))
        name = message.sampler.sampler_id
        if not name or len(name.encode()) > _MAX_ID_BYTES:
            raise InvalidDataError(
                f"a sampler_id of {len(name.encode())} bytes; 1 to {_MAX_ID_BYTES} are allowed"
            )
        sampler = SamplerIdentity(name, message.sampler.incarnation)
        opened = self._intake.open(
            sampler,
            message.fragment_bytes,
            message.fragment_transitions,
            self._mailbox.put,
            next_sequence=message.next_sequence,
        )
        self._token, self._sampler = opened.token, sampler
        self._mailbox.put(Welcome.of(opened, shared_memory=self._map_slab(message)))

    def _map_slab(self, message: trajectory_pb2.OpenStream) -> bool:
        """Whether the sender's memory is now shared; if not, its fragments come over the stream."""
        if not message.HasField("slab"):
            return False
        try:
            self._assembler.read_slab = SlabReader(message.slab).read
        except CodecError:
            return False
        return True

    def _take(self, fragment: Fragment) -> None:
        self._own_fragment(fragment.id.sampler)
        nbytes = fragment.nbytes
        if fragment.config_digest != self._own.config_digest:
            detail = f"made under configuration {fragment.config_digest}, not {self._own.config_digest}"
            self._refuse(fragment, nbytes, "foreign_config", detail)
            return
        refusal = self._check(fragment)
        if refusal is None:
            self._good.append((fragment, nbytes))
        else:
            self._refuse(fragment, nbytes, *refusal)

    def _hand_over(self) -> None:
        """Pass on what one message brought, at once: what it makes possible is worked out once, too."""
        if self._good:
            self._intake.offer_all(self._token, self._good)
            self._good = []

    def _refuse(self, fragment: Fragment | Damaged, nbytes: int, reason: str, detail: str) -> None:
        self._hand_over()  # what came before it
        self._intake.refuse(
            self._token, fragment.id.sequence, fragment.num_transitions, nbytes, reason, detail
        )

    def _own_fragment(self, maker: SamplerIdentity) -> None:
        if maker != self._sampler:
            raise InvalidDataError(f"a fragment of {maker} on the stream of {self._sampler}")
