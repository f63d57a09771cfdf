"""A gRPC server whose streams share one event loop: for thousands of streams that mostly wait.

Everything else is served by :mod:`headrace.rpc.server`, which has a thread for each stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import _async as health  # documented as ``health.aio``, which mypy can't see
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.errors import ConfigurationError
from headrace.rpc.credentials import Credentials, process_credentials
from headrace.rpc.guard import FIRST_MESSAGE_S, AsyncSilenceGuard, AsyncTokenGuard
from headrace.rpc.server import check_bindable, port_taken, server_options, split_address

_START_S = 30.0
_MARGIN_S = 5.0


class EventLoopServer:
    """Listens until :meth:`stop`; the loop runs in a thread of its own. ``port`` is the bound one.

    ``make_handlers`` is called in the loop, so that what it makes may belong to it (channels, events);
    ``close`` is awaited there at the end. A new server is not serving for health: see :meth:`set_serving`.
    """

    def __init__(
        self,
        *,
        address: str,
        make_handlers: Callable[[], Sequence[grpc.GenericRpcHandler[Any, Any]]],
        close: Callable[[], Awaitable[None]],
        service_names: Sequence[str],
        max_calls: int,
        setting: str,
        credentials: Credentials | None = None,
        first_message_s: float = FIRST_MESSAGE_S,
    ) -> None:
        """Bind ``address`` ("host:port", port 0: a free one). Calls beyond ``max_calls`` are refused.

        ``credentials`` None: those of this process. A call whose first message isn't there after
        ``first_message_s`` seconds is ended. ConfigurationError, naming ``setting``: the address can't be
        bound.
        """
        self.host, port = split_address(address, setting)
        check_bindable(self.host, port, setting)
        self._make_handlers = make_handlers
        self._close = close
        self._names = ("", *service_names)
        self._max_calls = max_calls
        self._credentials = process_credentials() if credentials is None else credentials
        self._first_message_s = first_message_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="rpc-loop", daemon=True)
        self._thread.start()
        try:
            self.port = self._submit(self._start(address)).result(_START_S)
        except RuntimeError as error:
            self._end_loop()
            raise ConfigurationError([port_taken(setting, self.host, port)]) from error
        except BaseException:
            self._end_loop()
            raise

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return f"{self.host}:{self.port}"

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` in the loop, from any thread. Nothing happens once the server has stopped."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)

    def set_serving(self, serving: bool) -> None:
        """What health answers from now on. Doesn't wait; from any thread."""
        with contextlib.suppress(RuntimeError):
            self._submit(self._set_serving(serving))

    def stop(self, grace_s: float) -> None:
        """Refuse new calls, give open ones ``grace_s`` seconds, then cut them. Idempotent."""
        if self._loop.is_closed():
            return
        self._submit(self._stop(grace_s)).result(grace_s + _MARGIN_S)
        self._end_loop()

    def _submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_MARGIN_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _start(self, address: str) -> int:
        server = grpc.aio.server(
            interceptors=[AsyncTokenGuard(self._credentials), AsyncSilenceGuard(self._first_message_s)],
            options=server_options(),
            maximum_concurrent_rpcs=self._max_calls,
        )
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        await self._set_serving(False)
        server.add_generic_rpc_handlers(tuple(self._make_handlers()))
        own = self._credentials.server_credentials()
        port = server.add_insecure_port(address) if own is None else server.add_secure_port(address, own)
        await server.start()
        self._server = server
        return port

    async def _stop(self, grace_s: float) -> None:
        await self._set_serving(False)
        await self._server.stop(grace_s)
        await self._close()

    async def _set_serving(self, serving: bool) -> None:
        kinds = health_pb2.HealthCheckResponse
        for name in self._names:
            await self._health.set(name, kinds.SERVING if serving else kinds.NOT_SERVING)
