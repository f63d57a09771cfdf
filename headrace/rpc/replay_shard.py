"""ReplayShardService over any store of experience: decode, ask the shard, encode."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from headrace.codec.samples import MAX_ITEMS, encode_opened, encode_sample, unpack_priorities
from headrace.codec.slab import SlabWriter, make_slab
from headrace.errors import HeadraceError, InvalidDataError, UnavailableError
from headrace.replay.items import PriorityOutcome
from headrace.replay.shard import ShardStats
from headrace.rpc import handshake
from headrace.rpc.errors import answering
from headrace.rpc.handshake import Handshake
from headrace.types import Sample
from headrace.v1 import replay_pb2

SERVICE = "headrace.v1.ReplayShardService"
HANDSHAKE_S = 10.0  # a peer that opens a stream and says nothing for so long is cut
MAX_ANSWER_BYTES = 2**26
"""An answer holds fewer items than were asked for rather than more bytes than this."""

_FIRST_ITEMS = 16  # at most, while it isn't known how large an item is
_MAX_WAITING = 16  # draws of one stream that are read ahead; more are left to its flow control
_MAX_VERSION = 2**63 - 1

MAX_SEQUENCE = 1024
"""Steps of a drawn sequence; longer ones would keep a shard's lock, or Redis, for too long."""


class Shard(Protocol):
    """What is served; :class:`headrace.replay.shard.HotShard` is one. Thread-safe."""

    def sample(self, num_items: int, sequence_length: int = 1) -> Sample | None:
        """Draw with replacement; None if there is nothing to draw. Fewer items if there are no more."""
        ...

    def update_priorities(
        self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating]
    ) -> PriorityOutcome:
        """Set priorities ``[N]``."""
        ...

    def set_version(self, number: int) -> None:
        """Say which policy version is the newest."""
        ...

    def stats(self) -> ShardStats:
        """How it stands."""
        ...


class ReplayShardServicer:
    """One method an rpc. Samples stay bytes: the codec writes them. Two threads a stream: gRPC's own one
    draws and speaks, one of ours listens.

    ``_lock`` guards the open streams and whether it is draining.
    """

    def __init__(
        self,
        shard: Shard,
        own: Handshake,
        *,
        message_bytes: int,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        slab_bytes: int = 0,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """``slab_bytes``: memory that each stream of a learner on this node may share; 0: none."""
        self._shard = shard
        self._own = own
        self._message_bytes = message_bytes
        self._max_answer_bytes = max_answer_bytes
        self._slab_bytes = slab_bytes
        self._handshake_s = handshake_s
        self._item_bytes: dict[int, int] = {}  # of an item, as last seen, by length of sequences
        self._lock = threading.Lock()
        self._streams: set[_Inbox] = set()
        self._draining: UnavailableError | None = None

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What a server has to be given."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Sample": grpc.stream_stream_rpc_method_handler(self.sample),
                "UpdatePriorities": grpc.unary_unary_rpc_method_handler(
                    self.update_priorities,
                    request_deserializer=replay_pb2.UpdatePrioritiesRequest.FromString,
                    response_serializer=replay_pb2.UpdatePrioritiesResponse.SerializeToString,
                ),
                "GetShardStats": grpc.unary_unary_rpc_method_handler(
                    self.get_shard_stats,
                    request_deserializer=replay_pb2.GetShardStatsRequest.FromString,
                    response_serializer=replay_pb2.GetShardStatsResponse.SerializeToString,
                ),
            },
        )

    def drain(self, reason: str = "the shard is draining") -> None:
        """End all streams after the answers under way, and refuse new ones, as UNAVAILABLE. Idempotent."""
        with self._lock:
            if self._draining is None:
                self._draining = UnavailableError(reason)
            error, streams = self._draining, list(self._streams)
        for stream in streams:
            stream.end(error)

    def sample(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """rpc Sample."""
        inbox = _Inbox()
        slab: SlabWriter | None = None
        with answering(context):
            self._enter(inbox)
            try:
                threading.Thread(
                    target=inbox.read, args=(requests,), name="sample-reader", daemon=True
                ).start()
                opened = self._opened(inbox, context)
                slab = make_slab(self._slab_bytes if opened.shared_memory else 0)
                yield encode_opened(slab)
                while (request := inbox.take()) is not None:
                    if request.WhichOneof("kind") != "draw":
                        raise InvalidDataError("after the handshake only draws follow")
                    yield from self._draw(request.draw, opened.checksum, slab)
            finally:
                inbox.end()
                if slab is not None:
                    slab.close()
                with self._lock:
                    self._streams.discard(inbox)

    def _enter(self, inbox: _Inbox) -> None:
        with self._lock:
            if self._draining is not None:
                raise self._draining
            self._streams.add(inbox)

    def _opened(self, inbox: _Inbox, context: grpc.ServicerContext) -> replay_pb2.OpenSampling:
        try:
            first = inbox.take(self._handshake_s)
        except TimeoutError:
            context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no OpenSampling within {self._handshake_s:g} s"
            )
        if first is None or first.WhichOneof("kind") != "open":
            raise InvalidDataError("the first message of a sample stream must be its handshake")
        handshake.check(self._own, Handshake.from_proto(first.open.handshake))
        return first.open

    def _draw(self, draw: replay_pb2.Draw, checksum: bool, slab: SlabWriter | None) -> Iterator[bytes]:
        if not 1 <= draw.num_items <= MAX_ITEMS:
            raise InvalidDataError(f"a draw of {draw.num_items} items; 1 to {MAX_ITEMS} are allowed")
        if draw.newest_version > _MAX_VERSION:
            raise InvalidDataError(f"version number {draw.newest_version} is too large")
        length = max(1, draw.sequence_length)
        if length > MAX_SEQUENCE:
            raise InvalidDataError(f"sequences of {length} steps; at most {MAX_SEQUENCE} are allowed")
        self._shard.set_version(draw.newest_version)
        sample = self._shard.sample(self._allowed(draw.num_items, length), length)
        if sample is not None:
            nbytes = sum(column.nbytes for column in sample.columns.values())
            self._item_bytes[length] = max(1, nbytes // sample.size)
        stats = self._shard.stats()
        return encode_sample(
            draw.request_id,
            sample,
            count=stats.count,
            mass=stats.mass,
            message_bytes=self._message_bytes,
            checksum=checksum,
            write_slab=slab.write if slab is not None and draw.shared_memory else None,
        )

    def _allowed(self, num_items: int, length: int) -> int:
        """Items that an answer may hold, by the size of those before."""
        item_bytes = self._item_bytes.get(length, 0)
        if not item_bytes:
            return min(num_items, _FIRST_ITEMS)
        return min(num_items, max(1, self._max_answer_bytes // item_bytes))

    def update_priorities(
        self, request: replay_pb2.UpdatePrioritiesRequest, context: grpc.ServicerContext
    ) -> replay_pb2.UpdatePrioritiesResponse:
        """rpc UpdatePriorities."""
        with answering(context):
            handshake.check(self._own, Handshake.from_proto(request.handshake))
            keys, priorities = unpack_priorities(request.keys, request.priorities)
            with self._lock:
                draining = self._draining
            if draining is not None:
                raise draining
            outcome = self._shard.update_priorities(keys, priorities)
        bad = f"{outcome.refused} of {len(keys)} priorities are NaN, infinite or negative"
        return replay_pb2.UpdatePrioritiesResponse(
            applied=outcome.applied,
            ignored=outcome.ignored,
            refused=outcome.refused,
            reason=bad if outcome.refused else "",
        )

    def get_shard_stats(
        self, _request: replay_pb2.GetShardStatsRequest, _context: grpc.ServicerContext
    ) -> replay_pb2.GetShardStatsResponse:
        """rpc GetShardStats."""
        stats = self._shard.stats()
        return replay_pb2.GetShardStatsResponse(
            count=stats.count,
            mass=stats.mass,
            inserted=stats.inserted,
            evicted=stats.evicted,
            drawn=stats.drawn,
            fill_ratio=stats.fill_ratio,
            nbytes=stats.nbytes,
            stored=stats.stored,
            newest_version=stats.newest_version,
        )


class _Inbox:
    """Requests of one stream, on their way from the thread that reads to the one that draws. Bounded.

    ``_changed`` guards everything.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[replay_pb2.SampleRequest] = deque()
        self._error: HeadraceError | None = None
        self._ended = False

    def read(self, requests: Iterator[bytes]) -> None:
        """Read until the peer has nothing more to say, breaks the contract, or is gone."""
        error: HeadraceError | None = None
        try:
            for data in requests:
                request = replay_pb2.SampleRequest.FromString(data)
                with self._changed:
                    self._changed.wait_for(lambda: len(self._waiting) < _MAX_WAITING or self._ended)
                    if self._ended:
                        return
                    self._waiting.append(request)
                    self._changed.notify_all()
        except DecodeError:
            error = InvalidDataError("a message that is no SampleRequest")
        except grpc.RpcError:
            pass  # cancelled or disconnected: there is nobody to answer
        finally:
            self.end(error)

    def take(self, timeout_s: float | None = None) -> replay_pb2.SampleRequest | None:
        """The next request; None: the peer is done. TimeoutError after ``timeout_s`` seconds.

        What was asked before the end is still given, unless the stream ends with an error of ours: that is
        raised at once.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._waiting) or self._ended, timeout_s):
                raise TimeoutError
            if isinstance(self._error, UnavailableError):
                raise self._error
            if self._waiting:
                self._changed.notify_all()
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error
            return None

    def end(self, error: HeadraceError | None = None) -> None:
        """Nothing more comes. The first error stays."""
        with self._changed:
            self._ended = True
            self._error = self._error or error
            self._changed.notify_all()
