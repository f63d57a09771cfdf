"""Hands calls on to another server as they are: bytes in, bytes out, with its answer or its refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from headrace.rpc.async_channel import AsyncChannel

Context = grpc.aio.ServicerContext[Any, Any]


class Forwarder:
    """Makes handlers that call the same method at ``address``. Belongs to the event loop it is made in.

    A stream is handed on message by message, at the pace of the slower end: nothing piles up here.
    """

    def __init__(self, address: str) -> None:
        self._channel = AsyncChannel(address)

    def handler(
        self, path: str, *, requests_stream: bool, answers_stream: bool
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        """For the method ``/<service>/<method>``."""
        kind = f"{_word(requests_stream)}_{_word(answers_stream)}"

        def make(*request: bytes, **options: Any) -> Any:
            return self._channel.method(kind, path)(*request, **options)

        return (_passing_stream if answers_stream else _passing_one)(make, requests_stream)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _word(streams: bool) -> str:
    return "stream" if streams else "unary"


def _passing_stream(make: Any, requests_stream: bool) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def pass_on(request: Any, context: Context) -> AsyncIterator[bytes]:
        try:
            with _calling(make, request, requests_stream, context) as call:
                async for answer in call:
                    yield answer
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")

    behavior: Any = pass_on
    if requests_stream:
        return grpc.stream_stream_rpc_method_handler(behavior)
    return grpc.unary_stream_rpc_method_handler(behavior)


def _passing_one(make: Any, requests_stream: bool) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def pass_on(request: Any, context: Context) -> bytes:
        try:
            with _calling(make, request, requests_stream, context) as call:
                answer: bytes = await call
                return answer
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
            raise AssertionError("abort raises") from error

    behavior: Any = pass_on
    if requests_stream:
        return grpc.stream_unary_rpc_method_handler(behavior)
    return grpc.unary_unary_rpc_method_handler(behavior)


@contextmanager
def _calling(make: Any, request: Any, requests_stream: bool, context: Context) -> Iterator[Any]:
    """A call with that request, or with that stream of requests; it ends with the block at the latest."""
    if not requests_stream:
        call = make(request, timeout=context.time_remaining())
        sending = None
    else:
        call = make(timeout=context.time_remaining())
        sending = asyncio.create_task(_send_on(request, call))
    try:
        yield call
    finally:
        call.cancel()
        if sending is not None:
            sending.cancel()


async def _send_on(requests: AsyncIterator[bytes], call: Any) -> None:
    """Not left to grpc.aio: where it can't send it says CANCELLED, whatever upstream or the network said."""
    with suppress(Exception):  # the call has ended: its status, which is waited for, says why
        async for request in requests:
            await call.write(request)
        await call.done_writing()
