"""Hands calls on to another server as they are: bytes in, bytes out, with its answer or its refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from headrace.rpc.channel import CHANNEL_OPTIONS

Context = grpc.aio.ServicerContext[Any, Any]


class Forwarder:
    """Makes handlers that call the same method at ``address``. Belongs to the event loop it is made in.

    A stream is handed on message by message, at the pace of the slower end: nothing piles up here.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    def handler(
        self, path: str, *, requests_stream: bool, answers_stream: bool
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """For the method ``/<service>/<method>``."""
        channel: Any = self._channel  # the stubs demand serializers; without them bytes stay as they are
        if answers_stream:
            make = channel.stream_stream if requests_stream else channel.unary_stream
            return _passing_stream(make(path), requests_stream)
        make = channel.stream_unary if requests_stream else channel.unary_unary
        return _passing_one(make(path), requests_stream)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close(None)


def _passing_stream(call: Any, requests_stream: bool) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def pass_on(request: Any, context: Context) -> AsyncIterator[bytes]:
        try:
            async for answer in call(request, timeout=context.time_remaining()):
                yield answer
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")

    behavior: Any = pass_on
    if requests_stream:
        return grpc.stream_stream_rpc_method_handler(behavior)
    return grpc.unary_stream_rpc_method_handler(behavior)


def _passing_one(call: Any, requests_stream: bool) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def pass_on(request: Any, context: Context) -> bytes:
        try:
            answer: bytes = await call(request, timeout=context.time_remaining())
            return answer
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
            raise AssertionError("abort raises") from error

    behavior: Any = pass_on
    if requests_stream:
        return grpc.stream_unary_rpc_method_handler(behavior)
    return grpc.unary_unary_rpc_method_handler(behavior)
