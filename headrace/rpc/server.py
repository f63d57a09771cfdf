"""Starting and stopping a gRPC server: bounds, health, and a taken port said in words."""

from __future__ import annotations

import errno
import os
import resource
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from headrace.errors import ConfigurationError
from headrace.rpc.channel import KEEPALIVE_S, MAX_MESSAGE_BYTES
from headrace.rpc.credentials import Credentials, process_credentials
from headrace.rpc.guard import FIRST_MESSAGE_S, SilenceGuard, TokenGuard, behavior_of
from headrace.rpc.health import SERVICE as HEALTH_SERVICE
from headrace.rpc.health import Health

Register = Callable[[grpc.Server], None]
"""Adds one service to a server, e.g. ``partial(add_RunServiceServicer_to_server, servicer)``."""

_SPARE_THREADS = 16  # for unary calls and for refusing streams beyond the limit
_MAX_WAITING_CALLS = 1024

_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Otherwise a second process may bind the same port and half of the calls go astray.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_S * 500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    # Whoever connects and then says nothing, or speaks another protocol, is cut.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # A client of ours has one stream on each connection; a relay hands on the calls of many.
    ("grpc.max_concurrent_streams", 256),
    ("grpc.max_connection_idle_ms", 10 * 60_000),
)
_MAX_CONNECTIONS = 16_384


def server_options() -> tuple[tuple[str, int], ...]:
    """Options of every server.

    Connections take at most half of the process's descriptors: checkpoints, and its own connections, need
    the rest, whoever knocks.
    """
    descriptors, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = _MAX_CONNECTIONS if descriptors == resource.RLIM_INFINITY else descriptors // 2
    return (*_OPTIONS, ("grpc.max_allowed_incoming_connections", min(_MAX_CONNECTIONS, few)))


class RunningServer:
    """A server that listens. ``port`` is the bound one, also where 0 was asked for."""

    def __init__(
        self,
        server: grpc.Server,
        health: Health,
        silence: SilenceGuard,
        pool: ThreadPoolExecutor,
        host: str,
        port: int,
    ) -> None:
        self._server = server
        self._health = health
        self._silence = silence
        self._pool = pool
        self.host = host
        self.port = port

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return f"{self.host}:{self.port}"

    def set_serving(self, serving: bool) -> None:
        """What health answers. A new server serves; a draining one should not."""
        self._health.set_serving(serving)

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, give open ones ``grace_s`` seconds, then cut them. Idempotent."""
        self._health.set_serving(False)
        self._server.stop(grace_s).wait(grace_s + 5.0)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._silence.close()
        self._health.close()


def serve(
    *,
    address: str,
    handlers: Sequence[grpc.GenericRpcHandler[Any, Any]] = (),
    register: Sequence[Register] = (),
    service_names: Sequence[str] = (),
    max_streams: int,
    setting: str = "network",
    credentials: Credentials | None = None,
    first_message_s: float = FIRST_MESSAGE_S,
) -> RunningServer:
    """Bind ``address`` ("host:port", port 0: a free one) and serve until :meth:`RunningServer.stop`.

    ``service_names`` are the full names health knows. At most ``max_streams`` streaming calls run at
    a time; the next one gets RESOURCE_EXHAUSTED. ``setting`` is the configuration key that a
    ConfigurationError names when the address can't be bound. ``credentials`` None: those of this process.
    A call whose first message isn't there after ``first_message_s`` seconds is cancelled.
    """
    host, port = split_address(address, setting)
    check_bindable(host, port, setting)
    pool = ThreadPoolExecutor(max_streams + _SPARE_THREADS, thread_name_prefix="rpc")
    health = Health(tuple(service_names))
    own = process_credentials() if credentials is None else credentials
    silence = SilenceGuard(first_message_s)
    server = grpc.server(
        pool,
        interceptors=[TokenGuard(own), silence, _StreamLimit(max_streams)],
        options=server_options(),
        maximum_concurrent_rpcs=max_streams + _MAX_WAITING_CALLS,
    )
    server.add_generic_rpc_handlers((health.handler(), *handlers))
    for add in register:
        add(server)
    try:
        bound = _bind(server, address, own)
    except RuntimeError as error:
        pool.shutdown(wait=False)
        silence.close()
        health.close()
        raise ConfigurationError([port_taken(setting, host, port)]) from error
    server.start()
    health.set_serving(True)
    return RunningServer(server, health, silence, pool, host, bound)


def _bind(server: grpc.Server, address: str, credentials: Credentials) -> int:
    own = credentials.server_credentials()
    return server.add_insecure_port(address) if own is None else server.add_secure_port(address, own)


def split_address(address: str, setting: str = "network") -> tuple[str, int]:
    """Read ``host:port``; ConfigurationError on anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError([f"{setting}: {address!r} is not host:port with a port from 0 to 65535"])
    return host, int(port)


def check_bindable(host: str, port: int, setting: str) -> None:
    """Raise ConfigurationError, naming ``setting``, unless host:port can be listened on right now."""
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((bare, port))
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError([port_taken(setting, host, port)]) from error
        reason = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else str(error)
        raise ConfigurationError([f"{setting}: can't listen on {host}:{port}: {reason}"]) from error


def port_taken(setting: str, host: str, port: int) -> str:
    """The sentence about it."""
    return f"{setting}: {host}:{port} is already in use; choose another port, or 0 for a free one"


class _StreamLimit(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """Refuses streaming calls beyond a number, in words, instead of letting them queue unseen."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._open = 0
        self._lock = threading.Lock()  # guards _open

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """Wrap streaming handlers, except those of health."""
        handler = continuation(details)
        if handler is None or details.method.startswith(f"/{HEALTH_SERVICE}/"):
            return handler
        if not (handler.request_streaming or handler.response_streaming):
            return handler
        make, inner = _shape(handler)

        def limited(request: Any, context: grpc.ServicerContext) -> Any:
            self._enter(context)
            return inner(request, context)

        return make(
            limited,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _enter(self, context: grpc.ServicerContext) -> None:
        with self._lock:
            full = self._open >= self._max_streams
            if not full:
                self._open += 1
        if full:
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"all {self._max_streams} streams of this server are taken; try again when a client has left",
            )
        if not context.add_callback(self._leave):
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1


def _shape(handler: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The constructor and the behavior of a streaming handler."""
    if handler.request_streaming and handler.response_streaming:
        make: Callable[..., Any] = grpc.stream_stream_rpc_method_handler
    elif handler.request_streaming:
        make = grpc.stream_unary_rpc_method_handler
    else:
        make = grpc.unary_stream_rpc_method_handler
    return make, behavior_of(handler)
