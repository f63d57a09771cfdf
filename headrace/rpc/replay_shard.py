"""ReplayShardService over any store of experience: decode, ask the shard, encode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import grpc
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from headrace.codec.samples import MAX_ITEMS, encode_sample
from headrace.errors import InvalidDataError
from headrace.replay.items import PriorityOutcome
from headrace.replay.shard import ShardStats
from headrace.rpc import handshake
from headrace.rpc.errors import answering
from headrace.rpc.handshake import Handshake
from headrace.types import Sample
from headrace.v1 import replay_pb2

SERVICE = "headrace.v1.ReplayShardService"


class Shard(Protocol):
    """What is served; :class:`headrace.replay.shard.HotShard` is one. Thread-safe."""

    def sample(self, num_items: int) -> Sample | None:
        """Draw with replacement; None if there is nothing to draw."""
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
    """One method an rpc. Samples stay bytes: the codec writes them."""

    def __init__(self, shard: Shard, own: Handshake, *, message_bytes: int) -> None:
        self._shard = shard
        self._own = own
        self._message_bytes = message_bytes

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What a server has to be given."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Sample": grpc.stream_stream_rpc_method_handler(
                    self.sample, request_deserializer=_read_request
                ),
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

    def sample(
        self, requests: Iterator[replay_pb2.SampleRequest | None], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """rpc Sample."""
        with answering(context):
            first = next(requests, None)
            if first is None or first.WhichOneof("kind") != "open":
                raise InvalidDataError("the first message of a sample stream must be its handshake")
            handshake.check(self._own, Handshake.from_proto(first.open))
            for request in requests:
                if request is None or request.WhichOneof("kind") != "draw":
                    raise InvalidDataError("after the handshake only draws follow")
                yield from self._draw(request.draw)

    def _draw(self, draw: replay_pb2.Draw) -> list[bytes]:
        if not 1 <= draw.num_items <= MAX_ITEMS:
            raise InvalidDataError(f"a draw of {draw.num_items} items; 1 to {MAX_ITEMS} are allowed")
        self._shard.set_version(draw.newest_version)
        sample = self._shard.sample(draw.num_items)
        stats = self._shard.stats()
        return encode_sample(
            draw.request_id,
            sample,
            count=stats.count,
            mass=stats.mass,
            message_bytes=self._message_bytes,
        )

    def update_priorities(
        self, request: replay_pb2.UpdatePrioritiesRequest, context: grpc.ServicerContext
    ) -> replay_pb2.UpdatePrioritiesResponse:
        """rpc UpdatePriorities."""
        with answering(context):
            handshake.check(self._own, Handshake.from_proto(request.handshake))
            if len(request.keys) % 8 or len(request.keys) != 2 * len(request.priorities):
                raise InvalidDataError(
                    f"{len(request.keys)} bytes of keys (int64) for {len(request.priorities)} bytes "
                    "of priorities (float32)"
                )
            outcome = self._shard.update_priorities(
                np.frombuffer(request.keys, "<i8"), np.frombuffer(request.priorities, "<f4")
            )
        return replay_pb2.UpdatePrioritiesResponse(
            applied=outcome.applied, ignored=outcome.ignored, refused=outcome.refused
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
        )


def _read_request(data: bytes) -> replay_pb2.SampleRequest | None:
    """None for bytes that are no request: a deserializer that raises would end the stream without a word."""
    try:
        return replay_pb2.SampleRequest.FromString(data)
    except DecodeError:
        return None
