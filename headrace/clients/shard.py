"""One shard of replay from afar: its sample stream, kept open, and priorities on their way back."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from headrace import logs
from headrace.clients.priorities import GIVE_UP_S, PrioritySender
from headrace.codec.samples import Opened, SampleAssembler, SampleReply
from headrace.codec.slab import SlabReader
from headrace.errors import CodecError, HeadraceError
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import is_loopback, open_channel
from headrace.rpc.errors import error_of, is_fatal
from headrace.rpc.handshake import Handshake
from headrace.types import Sample
from headrace.v1 import replay_pb2

METHOD = "/headrace.v1.ReplayShardService/Sample"
_BACKOFF_S = (0.05, 1.0)
_JOIN_S = 5.0
_MAX_OUTSTANDING = 8  # answers under way or not yet picked up; more requests wait here

Check = Callable[[Sample], str]
"""Says what is wrong with a sample; empty: nothing."""


@dataclass(slots=True)
class _Request:
    """A draw that was asked for. ``reply`` once it is there."""

    num_items: int
    newest_version: int
    sequence_length: int
    reply: SampleReply | None = None


class ShardClient:
    """Draws from one shard. Broken connections are opened again, with backoff and jitter, until closed.

    At most ``_MAX_OUTSTANDING`` answers of ``max_bytes`` are under way or wait to be picked up.
    ``_changed`` guards everything and is notified when an answer arrives, the stream opens or breaks.
    ``fatal`` says why it gave up: the two ends don't belong together.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        *,
        max_bytes: int,
        check: Check = lambda _sample: "",
        rng: np.random.Generator | None = None,
        checksum: bool | None = None,
        shared_memory: bool = False,
        give_up_priorities_s: float = GIVE_UP_S,
    ) -> None:
        """``max_bytes`` bounds one answer; ``check`` is asked of each. ``checksum``: answers carry a CRC-32;
        None: where they cross a real network. ``shared_memory``: take arrays from the memory of a shard on
        this node, where it offers any; whoever holds them keeps it from being used again. Priorities that
        can't be sent for ``give_up_priorities_s`` seconds are given up.
        """
        self.address = address
        checked = not is_loopback(address) if checksum is None else checksum
        self._opening = replay_pb2.OpenSampling(
            handshake=handshake.to_proto(), checksum=checked, shared_memory=shared_memory
        )
        self._max_bytes = max_bytes
        self._check = check
        rng = rng or np.random.default_rng()
        self._backoff = Backoff(*_BACKOFF_S, rng)
        self._channel = open_channel(address)
        self._changed = threading.Condition()
        self._call: Any = None
        self._open = False
        self._shared = False
        self._closed = False
        self._next_id = 1
        self._unsent: deque[int] = deque()
        self._sent: deque[int] = deque()  # answers come in this order
        self._requests: dict[int, _Request] = {}  # by id, until picked up
        self._outstanding = 0
        self.fatal: HeadraceError | None = None
        self.refused = 0
        """Answers that were refused at the door."""
        self.problem = ""
        """What was wrong with the newest of those."""
        self._sender = PrioritySender(
            self._channel, handshake, rng.spawn(1)[0], give_up_s=give_up_priorities_s
        )
        self._thread = threading.Thread(target=self._hold, name="shard-samples", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether its stream is open: the shard has accepted us, and has not been lost since."""
        with self._changed:
            return self._open

    @property
    def shares_memory(self) -> bool:
        """Whether arrays may come through memory that the shard shares."""
        with self._changed:
            return self._shared

    @property
    def priorities(self) -> Counter[str]:
        """What became of priorities so far, by outcome; "unsent": too many waited, or the shard was gone."""
        return self._sender.outcomes()

    def ask(self, num_items: int, newest_version: int, sequence_length: int = 1) -> int:
        """Ask for items; returns the request's id, -1 if the stream isn't open. Never blocks.

        ``sequence_length`` above 1: each with the steps that follow it.
        """
        with self._changed:
            if not self._open:
                return -1
            request_id, self._next_id = self._next_id, self._next_id + 1
            self._requests[request_id] = _Request(num_items, max(0, newest_version), sequence_length)
            self._unsent.append(request_id)
            self._changed.notify_all()
            return request_id

    def answer(self, request_id: int, timeout_s: float) -> SampleReply | None:
        """The answer to a request; None if the stream broke or ``timeout_s`` passed: then it never comes.

        Pick up every answer: what isn't holds the following ones back.
        """
        with self._changed:
            request = self._requests.get(request_id)
            if request is None:
                return None
            self._changed.wait_for(
                lambda: request.reply is not None or request_id not in self._requests, timeout_s
            )
            if self._requests.pop(request_id, None) is not None and request.reply is not None:
                self._outstanding -= 1
                self._changed.notify_all()
            return request.reply

    def reconnect(self) -> None:
        """Give the stream up, and everything asked for on it: another one is opened."""
        with self._changed:
            self._open = False
            call = self._call
        if call is not None:
            call.cancel()

    def update_priorities(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating]) -> bool:
        """Send priorities ``[N]`` back, in the background. Never blocks. False if it is closed."""
        return self._sender.put(keys, priorities)

    def close(self) -> None:
        """Let go. What was asked for never comes; priorities that wait are given up. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._sender.close()
        self.reconnect()
        self._channel.close()
        self._sender.join()
        self._thread.join(_JOIN_S)

    def _hold(self) -> None:
        """The thread that holds the stream."""
        while True:
            try:
                error = self._follow_stream()
            except grpc.RpcError as raw:
                error = error_of(raw)
            except CodecError as broken:
                error = broken
            except ValueError:  # the channel was closed under us
                return
            with self._changed:
                if is_fatal(error):
                    self.fatal = error
                    self._changed.notify_all()
                if self._closed or self.fatal is not None:
                    return
                pause = self._backoff.after(error)
            if pause.loud:
                logs.get_logger().warning("shard lost", address=self.address, error=str(error))
            with self._changed:
                self._changed.wait_for(lambda: self._closed, pause.seconds)

    def _follow_stream(self) -> HeadraceError:
        """Open a stream and follow it to its end; returns why it ended, or raises that."""
        method = self._channel.stream_stream(
            METHOD,
            request_serializer=replay_pb2.SampleRequest.SerializeToString,
            response_deserializer=None,
        )
        stream = _Stream()
        call: Any = method(self._messages(stream))
        with self._changed:
            self._call = call
            if self._closed:
                call.cancel()
        assembler = SampleAssembler(self._max_bytes)
        try:
            for data in call:
                received = assembler.feed(data)
                if isinstance(received, Opened):
                    self._opened(received, assembler)
                elif received is not None:
                    self._backoff.reset()
                    self._take(received)
        finally:
            self._lost(stream)
            call.cancel()
        return HeadraceError("the shard ended the stream")

    def _opened(self, opened: Opened, assembler: SampleAssembler) -> None:
        shared = False
        if opened.slab is not None and self._opening.shared_memory:
            with suppress(CodecError):  # it can't be mapped from here: arrays come over the stream
                assembler.share(SlabReader(opened.slab).read)
                shared = True
        with self._changed:
            self._open, self._shared = not self._closed, shared
            self._changed.notify_all()

    def _lost(self, stream: _Stream) -> None:
        """What was asked for on the stream, or for it, never comes."""
        with self._changed:
            stream.ended = True
            self._open, self._shared, self._call = False, False, None
            self._requests.clear()
            self._unsent.clear()
            self._sent.clear()
            self._outstanding = 0
            self._changed.notify_all()

    def _messages(self, stream: _Stream) -> Iterator[replay_pb2.SampleRequest]:
        """What gRPC's thread sends on one stream."""
        yield replay_pb2.SampleRequest(open=self._opening)
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: stream.ended or (bool(self._unsent) and self._outstanding < _MAX_OUTSTANDING)
                )
                if stream.ended:
                    return
                request_id = self._unsent.popleft()
                request = self._requests.get(request_id)
                if request is None:  # given up before it was sent
                    continue
                self._sent.append(request_id)
                self._outstanding += 1
                draw = replay_pb2.Draw(
                    request_id=request_id,
                    num_items=request.num_items,
                    newest_version=request.newest_version,
                    shared_memory=self._shared,
                    sequence_length=request.sequence_length,
                )
            yield replay_pb2.SampleRequest(draw=draw)

    def _take(self, reply: SampleReply) -> None:
        """Hand an answer to whoever asked. CodecError for one that nobody asked for."""
        if reply.sample is not None:
            problem = self._check(reply.sample)
            if problem:
                reply = SampleReply(reply.request_id, None, reply.count, reply.mass, problem=problem)
        with self._changed:
            if not self._sent or self._sent[0] != reply.request_id:
                raise CodecError(f"an answer to request {reply.request_id}, which was not the next one asked")
            self._sent.popleft()
            request = self._requests.get(reply.request_id)
            if request is None:  # given up
                self._outstanding -= 1
            else:
                if reply.sample is not None and reply.sample.size > request.num_items:
                    raise CodecError(f"{reply.sample.size} items; {request.num_items} were asked for")
                request.reply = reply
            if reply.problem:
                self.refused += 1
                self.problem = reply.problem
            self._changed.notify_all()


@dataclass(slots=True, eq=False)
class _Stream:
    """One stream; ``ended`` once nothing is to be sent on it any more."""

    ended: bool = False
