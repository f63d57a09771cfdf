"""A call holds a place only if it says something; afterwards the place is free."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import hostile
import pytest

from headrace.rpc.channel import open_channel
from headrace.rpc.event_loop_server import EventLoopServer
from headrace.rpc.probes import LIVENESS, Probes, ask
from headrace.rpc.server import serve

WAIT_S = 60.0
LIMIT_S = 0.3
_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def _sync_handlers() -> grpc.GenericRpcHandler:  # type: ignore[type-arg]
    def one(request: Any, _context: Any) -> bytes:
        return request if isinstance(request, bytes) else b"".join(request)

    def many(request: Any, _context: Any) -> Iterator[bytes]:
        yield from ([request] if isinstance(request, bytes) else request)

    return _handlers(one, many)


def _async_handlers() -> grpc.GenericRpcHandler:  # type: ignore[type-arg]
    async def parts(request: Any) -> list[bytes]:
        return [request] if isinstance(request, bytes) else [part async for part in request]

    async def one(request: Any, _context: Any) -> bytes:
        return b"".join(await parts(request))

    async def many(request: Any, _context: Any) -> Any:
        for part in await parts(request):
            yield part

    return _handlers(one, many)


def _handlers(one: Any, many: Any) -> grpc.GenericRpcHandler:  # type: ignore[type-arg]
    methods = {
        kind: getattr(grpc, f"{kind}_rpc_method_handler")(one if kind.endswith("unary") else many)
        for kind in _KINDS
    }
    return grpc.method_handlers_generic_handler("test.Echo", methods)


@contextmanager
def _on_threads(first_message_s: float) -> Iterator[str]:
    server = serve(
        address="127.0.0.1:0", handlers=[_sync_handlers()], max_streams=2, first_message_s=first_message_s
    )
    try:
        yield server.address
    finally:
        server.stop(0.0)


@contextmanager
def _in_a_loop(first_message_s: float) -> Iterator[str]:
    async def close() -> None:
        pass

    server = EventLoopServer(
        address="127.0.0.1:0",
        make_handlers=lambda: [_async_handlers()],
        close=close,
        service_names=(),
        max_calls=18,
        setting="network",
        first_message_s=first_message_s,
    )
    try:
        yield server.address
    finally:
        server.stop(0.0)


Open = Callable[[float], Any]


@pytest.fixture(params=[_on_threads, _in_a_loop])
def open_server(request: pytest.FixtureRequest) -> Open:
    chosen: Open = request.param
    return chosen


@pytest.mark.parametrize("kind", _KINDS)
def test_who_speaks_is_heard_whole(open_server: Open, kind: str) -> None:
    with open_server(WAIT_S) as address, open_channel(address) as channel:
        call: Any = channel.stream_stream(f"/test.Echo/{kind}")
        sent = [b"a", b"b", b"c"] if kind.startswith("stream") else [b"a"]
        assert b"".join(call(iter(sent), timeout=WAIT_S)) == b"".join(sent)


@pytest.mark.parametrize("kind", _KINDS)
def test_silent_calls_give_their_places_back(open_server: Open, kind: str) -> None:
    over = threading.Event()
    with open_server(LIMIT_S) as address, open_channel(address) as channel:
        silent: list[Any] = [
            channel.stream_stream(f"/test.Echo/{kind}")(_silent_until(over)) for _ in range(18)
        ]
        codes = {call.code() for call in silent}
        assert codes <= {
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,  # there was no place for it
        }
        over.set()
        with open_channel(address) as another:
            assert another.unary_unary("/test.Echo/unary_unary")(b"here", timeout=WAIT_S) == b"here"


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
def test_a_call_without_its_request_is_refused(open_server: Open, kind: str) -> None:
    with open_server(WAIT_S) as address, open_channel(address) as channel:
        call: Any = channel.stream_stream(f"/test.Echo/{kind}")(iter(()), timeout=WAIT_S)
        assert call.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("method", ["Check", "Watch"])
def test_silent_calls_of_health_do_not_keep_it_from_answering(method: str) -> None:
    over = threading.Event()
    probes = Probes("127.0.0.1", 0)
    address = f"127.0.0.1:{probes.port}"
    with open_channel(address) as channel:
        for _ in range(8):
            channel.stream_stream(f"/grpc.health.v1.Health/{method}")(_silent_until(over))
        assert ask(address, LIVENESS, timeout_s=WAIT_S)
        over.set()
    probes.close()


def test_connections_beyond_the_limit_are_closed_at_once_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.rpc.server._MAX_CONNECTIONS", 3)
    with _on_threads(WAIT_S) as address, ExitStack() as stack:
        peers = [stack.enter_context(hostile.connect(address)) for _ in range(3)]
        assert all(_is_greeted(peer) for peer in peers)
        assert not _is_greeted(stack.enter_context(hostile.connect(address)))
        peers[0].sendall(_PING)
        assert peers[0].recv(1)


@pytest.mark.slow
@pytest.mark.parametrize("beginning", [b"", hostile.PREFACE])
def test_a_connection_that_never_begins_is_cut(beginning: bytes) -> None:
    with _on_threads(WAIT_S) as address, hostile.connect(address) as peer:
        peer.sendall(beginning)
        while peer.recv(65536):  # socket.timeout, if it isn't
            pass


_PING = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8)


def _is_greeted(peer: socket.socket) -> bool:
    """Whether the server answers the beginning of HTTP/2."""
    try:
        peer.sendall(hostile.PREFACE + hostile.SETTINGS)
        return bool(peer.recv(65536))
    except OSError:
        return False


def _silent_until(over: threading.Event) -> Iterator[bytes]:
    over.wait(WAIT_S)
    yield from ()
