"""The HTTP endpoint of metrics: one thread, few connections, each for seconds. It answers GET, nothing else.

Whatever is sent to it, it holds at most ``MAX_CONNECTIONS`` connections of ``MAX_REQUEST_BYTES`` each. When
all are taken, the one that is there longest is cut: so many slow ones can't keep a scraper out.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from headrace import logs

MAX_CONNECTIONS = 32
MAX_REQUEST_BYTES = 8192
DEADLINE_S = 5.0
"""Seconds from connecting to the end of the answer."""
_BACKLOG = 128
_PATHS = ("/metrics", "/")


class MetricsServer:
    """Serves one registry until the process ends. OSError: it can't listen there."""

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._registry = registry
        self._deadline_s = deadline_s
        self._open: dict[asyncio.Task[None], None] = {}  # in the order in which they came
        self._bound: Future[int] = Future()
        threading.Thread(target=self._run, args=(host, port), name="metrics", daemon=True).start()
        self.port = self._bound.result()

    def _run(self, host: str, port: int) -> None:
        asyncio.run(self._serve(host, port))

    async def _serve(self, host: str, port: int) -> None:
        try:
            server = await asyncio.start_server(
                self._connected, host, port, limit=MAX_REQUEST_BYTES, backlog=_BACKLOG
            )
        except BaseException as error:
            self._bound.set_exception(error)
            return
        self._bound.set_result(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = asyncio.current_task()
        assert own is not None
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        self._open[own] = None
        try:
            async with asyncio.timeout(self._deadline_s):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.write_eof()
        except (TimeoutError, OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._open.pop(own, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return _response("400 Bad Request", b"not an HTTP request\n")
        except asyncio.LimitOverrunError:
            return _response("431 Request Header Fields Too Large", b"too long\n")
        first, *headers = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        path, _, protocol = rest.partition(" ")
        if not protocol.startswith("HTTP/1."):
            return _response("400 Bad Request", b"not an HTTP request\n")
        if method != "GET":
            return _response("405 Method Not Allowed", b"GET only\n", "Allow: GET\r\n")
        if path.partition("?")[0] not in _PATHS:
            return _response("404 Not Found", b"see /metrics\n")
        accept = next((line[7:].strip() for line in headers if line.lower().startswith("accept:")), "")
        try:
            encode, kind = choose_encoder(accept)
            return _response("200 OK", encode(self._registry), kind=kind)
        except Exception as error:  # a collector of a service failed: its metrics are gone, not the endpoint
            logs.get_logger().error("metrics could not be collected", error=repr(error))
            return _response("500 Internal Server Error", b"metrics could not be collected\n")


def _response(status: str, body: bytes, more: str = "", *, kind: str = "text/plain; charset=utf-8") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
