"""What stands before every handler of a server: is the call allowed, and does the peer say anything at all?

Health stays open to everybody, so that whoever restarts dead processes needs no credentials.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio

from headrace.rpc.credentials import Credentials
from headrace.rpc.health import SERVICE as HEALTH_SERVICE

FIRST_MESSAGE_S = 15.0
"""Seconds that a call may hold a place without having sent its first message."""

HEALTH_FIRST_MESSAGE_S = 2.0
"""The same for health, whose calls have little to say."""

_NO_REQUEST = "the call has no request"


def refusing(credentials: Credentials, details: Any) -> str:
    """Why this call must not be served; empty: it may be."""
    if details.method.startswith(f"/{HEALTH_SERVICE}/"):
        return ""
    return credentials.refusal(tuple(details.invocation_metadata or ()))


class TokenGuard(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """Ends calls without a valid token as UNAUTHENTICATED, before anything of them is read."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's own handler, or one that refuses."""
        refused = refusing(self._credentials, details)
        if not refused:
            return continuation(details)

        def refuse(_requests: Any, context: grpc.ServicerContext) -> Any:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, refused)

        # As a stream, whatever the method is: otherwise its request would be waited for.
        return grpc.stream_stream_rpc_method_handler(refuse)


class AsyncTokenGuard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """The same for a server that runs in an event loop."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def intercept_service(
        self, continuation: Callable[..., Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """The method's own handler, or one that refuses."""
        refused = refusing(self._credentials, handler_call_details)
        if not refused:
            return await continuation(handler_call_details)

        async def refuse(_requests: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, refused)

        behavior: Any = refuse
        return grpc.stream_stream_rpc_method_handler(behavior)


class SilenceGuard(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """Ends calls whose first message doesn't come in time. Each would hold a thread for ever.

    Health has few threads, all its own, so there it must come at once.
    """

    def __init__(self, limit_s: float = FIRST_MESSAGE_S) -> None:
        self._limit_s = limit_s
        self._deadlines = _Deadlines()

    def close(self) -> None:
        """End its thread."""
        self._deadlines.close()

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """The method's handler, with a deadline for the first message."""
        handler = continuation(details)
        if handler is None:
            return None
        inner, streaming = behavior_of(handler), handler.request_streaming
        of_health = details.method.startswith(f"/{HEALTH_SERVICE}/")
        limit_s = min(self._limit_s, HEALTH_FIRST_MESSAGE_S) if of_health else self._limit_s

        def first_then(requests: Iterator[Any], context: grpc.ServicerContext, *more: Any) -> Any:
            watched = self._watched(requests, context, limit_s)
            if streaming:
                return inner(watched, context, *more)
            for request in watched:
                return inner(request, context, *more)
            return context.abort(grpc.StatusCode.INVALID_ARGUMENT, _NO_REQUEST)

        # Where gRPC shall run it is written on the function (see headrace.rpc.health).
        for name in ("experimental_thread_pool", "experimental_non_blocking"):
            if hasattr(inner, name):
                setattr(first_then, name, getattr(inner, name))
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(
            first_then,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _watched(
        self, requests: Iterator[Any], context: grpc.ServicerContext, limit_s: float
    ) -> Iterator[Any]:
        """The same requests; the call is cancelled unless the first one, or its end, comes in time."""
        deadline = self._deadlines.add(time.monotonic() + limit_s, context.cancel)
        if not context.add_callback(lambda: self._deadlines.remove(deadline)):
            self._deadlines.remove(deadline)

        def first() -> Iterator[Any]:
            for request in itertools.islice(requests, 1):
                self._deadlines.remove(deadline)
                yield request

        return itertools.chain(first(), requests)


def behavior_of(handler: Any) -> Callable[..., Any]:
    """The function behind a handler, whatever its shape."""
    if handler.request_streaming:
        found = handler.stream_stream if handler.response_streaming else handler.stream_unary
    else:
        found = handler.unary_stream if handler.response_streaming else handler.unary_unary
    behavior: Callable[..., Any] = found
    return behavior


class _Deadlines:
    """Calls functions when their time has come, in one thread. ``_changed`` guards all state."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int]] = []
        self._waiting: dict[int, Callable[[], None]] = {}
        self._next = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="rpc-deadlines", daemon=True)
        self._thread.start()

    def add(self, at: float, act: Callable[[], None]) -> int:
        """Call ``act`` at this time of the monotonic clock, unless it is removed before."""
        with self._changed:
            number, self._next = self._next, self._next + 1
            self._waiting[number] = act
            heapq.heappush(self._heap, (at, number))
            if self._heap[0][1] == number:
                self._changed.notify()
            return number

    def remove(self, number: int) -> None:
        """Not needed any more. What is removed leaves the heap at its time, so add few in advance."""
        with self._changed:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """End the thread; nothing is called any more."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._heap or self._heap[0][0] > time.monotonic()):
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                if self._closed:
                    return
                act = self._waiting.pop(heapq.heappop(self._heap)[1], None)
            if act is not None:
                act()


class AsyncSilenceGuard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """As :class:`SilenceGuard`, on a server that runs in an event loop: there each call holds a place."""

    def __init__(self, limit_s: float = FIRST_MESSAGE_S) -> None:
        self._limit_s = limit_s

    async def intercept_service(
        self, continuation: Callable[..., Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """The method's handler, with a deadline for the first message."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(f"/{HEALTH_SERVICE}/"):
            return handler
        inner: Any = behavior_of(handler)
        make: Any
        behavior: Any
        streaming = handler.request_streaming

        async def request_of(requests: AsyncIterable[Any], context: Any) -> Any:
            """What the handler's own function takes: the only request, or all of them."""
            incoming = aiter(requests)
            first: list[Any] = []
            try:
                async with asyncio.timeout(self._limit_s):
                    first.append(await anext(incoming))
            except StopAsyncIteration:
                pass
            except TimeoutError:
                sentence = f"the call's first message didn't come within {self._limit_s:g} s"
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, sentence)
            if streaming:
                return _chained(first, incoming)
            if not first:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _NO_REQUEST)
            return first[0]

        async def one(requests: AsyncIterable[Any], context: Any) -> Any:
            return await inner(await request_of(requests, context), context)

        async def many(requests: AsyncIterable[Any], context: Any) -> Any:
            async for response in inner(await request_of(requests, context), context):
                yield response

        async def written(requests: AsyncIterable[Any], context: Any) -> Any:
            await inner(await request_of(requests, context), context)

        if not handler.response_streaming:
            make, behavior = grpc.stream_unary_rpc_method_handler, one
        elif inspect.isasyncgenfunction(inner):
            make, behavior = grpc.stream_stream_rpc_method_handler, many
        else:
            make, behavior = grpc.stream_stream_rpc_method_handler, written
        return make(
            behavior,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


async def _chained(first: list[Any], rest: AsyncIterator[Any]) -> AsyncIterator[Any]:
    for request in first:
        yield request
    async for request in rest:
        yield request
