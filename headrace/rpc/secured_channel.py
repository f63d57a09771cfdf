"""A client channel whose calls carry this process's credentials as they are now, not as they were.

gRPC ties credentials to a channel for life. So behind this channel there is another one for each
generation of them: new calls use the newest, calls under way stay where they are, and a connection that is
replaced closes when its last call has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from headrace.rpc.credentials import NAME_OPTIONS, Credentials, Identity

Options = Sequence[tuple[str, int | str]]

_Kind = str  # "unary_unary", "unary_stream", "stream_unary" or "stream_stream"


class SecuredChannel(grpc.Channel):
    """See above. Thread-safe; ``_lock`` guards the connections, open and replaced."""

    def __init__(self, address: str, credentials: Credentials, options: Options) -> None:
        self._address = address
        self._credentials = credentials
        self._options = options
        self._lock = threading.Lock()
        self._newest: _Connection | None = None
        self._replaced: set[_Connection] = set()
        self._closed = False

    def unary_unary(self, method: str, *arguments: Any, **named: Any) -> Any:
        """As of any channel; so are the following three."""
        return _Method(self, "unary_unary", method, arguments, named)

    def unary_stream(self, method: str, *arguments: Any, **named: Any) -> Any:
        """One request, many responses."""
        return _Method(self, "unary_stream", method, arguments, named)

    def stream_unary(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Many requests, one response."""
        return _Method(self, "stream_unary", method, arguments, named)

    def stream_stream(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Many requests, many responses."""
        return _Method(self, "stream_stream", method, arguments, named)

    def subscribe(self, callback: Callable[..., None], try_to_connect: bool | None = False) -> None:
        """Hear of the connectivity of the newest connection."""
        connection, _identity = self.enter()
        connection.channel.subscribe(callback, try_to_connect=bool(try_to_connect))
        self.leave(connection)

    def unsubscribe(self, callback: Callable[..., None]) -> None:
        """Hear no more."""
        with self._lock:
            connections = [*self._replaced, *([self._newest] if self._newest else [])]
        for connection in connections:
            connection.channel.unsubscribe(callback)

    def close(self) -> None:
        """Close everything; calls under way end as cancelled."""
        with self._lock:
            self._closed = True
            connections = [*self._replaced, *([self._newest] if self._newest else [])]
            self._replaced.clear()
            self._newest = None
        for connection in connections:
            connection.channel.close()

    def __enter__(self) -> SecuredChannel:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def enter(self) -> tuple[_Connection, Identity]:
        """The connection for a new call, which counts as open until :meth:`leave`. ValueError if closed."""
        identity = self._credentials.current()
        idle = None
        with self._lock:
            if self._closed:
                raise ValueError("Cannot invoke RPC on closed channel!")
            if self._newest is None or self._newest.generation < identity.generation:
                idle = self._replace(identity)
            connection = self._newest
            assert connection is not None
            connection.calls += 1
        if idle is not None:
            idle.channel.close()
        return connection, identity

    def leave(self, connection: _Connection) -> None:
        """A call has ended."""
        with self._lock:
            connection.calls -= 1
            over = connection.calls == 0 and connection in self._replaced
            if over:
                self._replaced.discard(connection)
        if over:
            connection.channel.close()

    def _replace(self, identity: Identity) -> _Connection | None:
        """Open the newest connection; returns the one before if nobody uses it. The caller holds the lock."""
        before = self._newest
        own = identity.channel_credentials()
        if own is None:
            channel = grpc.insecure_channel(self._address, options=self._options)
        else:
            channel = grpc.secure_channel(self._address, own, options=(*self._options, *NAME_OPTIONS))
        self._newest = _Connection(channel, identity.generation)
        if before is None or before.calls == 0:
            return before
        self._replaced.add(before)
        return None


class _Connection:
    """A channel of gRPC's for one generation of credentials, and how many calls are under way on it."""

    def __init__(self, channel: grpc.Channel, generation: int) -> None:
        self.channel = channel
        self.generation = generation
        self.calls = 0


class _Method:
    """One method of the channel; called as gRPC's own multi-callables are."""

    def __init__(
        self,
        channel: SecuredChannel,
        kind: _Kind,
        name: str,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        self._channel = channel
        self._kind = kind
        self._name = name
        self._arguments = arguments
        self._named = named

    def __call__(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        """Call it: blocks for a single response, or returns a call that iterates over many."""
        connection, identity = self._channel.enter()
        call: Any = None
        try:
            call = self._on(connection)(request, metadata=_joined(metadata, identity), **options)
            return call
        finally:
            waited = self._kind.endswith("_unary") or call is None
            if waited or not call.add_callback(lambda: self._channel.leave(connection)):
                self._channel.leave(connection)

    def with_call(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        """Call a method with a single response; returns it and the call."""
        connection, identity = self._channel.enter()
        try:
            method = self._on(connection)
            return method.with_call(request, metadata=_joined(metadata, identity), **options)
        finally:
            self._channel.leave(connection)

    def future(self, request: Any, *, metadata: Any = None, **options: Any) -> Any:
        """Call a method with a single response without waiting for it."""
        connection, identity = self._channel.enter()
        try:
            method = self._on(connection)
            call = method.future(request, metadata=_joined(metadata, identity), **options)
        except BaseException:
            self._channel.leave(connection)
            raise
        call.add_done_callback(lambda _call: self._channel.leave(connection))
        return call

    def _on(self, connection: _Connection) -> Any:
        """What gRPC calls a multi-callable. It lives as long as the call: it would keep the channel."""
        return getattr(connection.channel, self._kind)(self._name, *self._arguments, **self._named)


def _joined(metadata: Any, identity: Identity) -> tuple[Any, ...]:
    return (*(metadata or ()), *identity.metadata)
