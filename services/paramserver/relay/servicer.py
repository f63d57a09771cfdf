"""The rpcs of a relay: watches are answered from its shelf, everything else is handed upstream."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from headrace.clients import messages
from headrace.clients.relaying import WholeVersion
from headrace.errors import ExhaustedError, InvalidDataError
from headrace.rpc.errors import answering_async
from headrace.rpc.handshake import Handshake, check
from headrace.types import PolicyVersion, RunStatus
from headrace.v1 import parameters_pb2, parameters_service_pb2
from services.paramserver.metrics import RelayMetrics
from services.paramserver.relay.forwarding import Context, Forwarder
from services.paramserver.relay.shelf import Shelf

SERVICE_NAMES = ("headrace.v1.ParameterService", "headrace.v1.RunService")
HEARTBEAT_S = 4.0
"""Silence after which a watcher hears the run's state again; the contract says at least every 5 s."""
OUTAGE_S = 12.0
"""Silence of upstream after which a relay doesn't say the run's state again: two heartbeats were missed, so
nobody knows whether it still holds. Watchers then hear nothing, as from a parameter server that is away."""
WATCH_AGE_S = 40.0
"""Seconds after which a watcher is asked to look around: its stream ends, it connects anew, perhaps to a
relay that is new or has less to do. Up to a quarter more or less, so that they don't all come at once."""
STALL_S = 60.0
"""Seconds that one message may take; a watcher that doesn't read for so long is sent away."""

_WATCH = "/headrace.v1.ParameterService/WatchVersions"


class RelayServicer:
    """Newest version and state of the run, out to many. Everything happens in one event loop."""

    def __init__(
        self,
        handshake: Handshake,
        *,
        max_watchers: int,
        metrics: RelayMetrics,
        upstream_silent_s: Callable[[], float],
        heartbeat_s: float = HEARTBEAT_S,
        outage_s: float = OUTAGE_S,
        watch_age_s: float = WATCH_AGE_S,
    ) -> None:
        """Made in the event loop that serves it. ``upstream_silent_s``: for how long nothing was heard."""
        self._watch_age_s = watch_age_s
        self._handshake = handshake
        self._max_watchers = max_watchers
        self._metrics = metrics
        self._upstream_silent_s = upstream_silent_s
        self._heartbeat_s = heartbeat_s
        self._outage_s = outage_s
        self._shelf = Shelf()
        self._status: RunStatus | None = None
        self._status_message = b""
        self._draining = False
        self._watchers = 0
        self._news = asyncio.Event()

    def refresh(self, whole: WholeVersion | None, status: RunStatus | None) -> None:
        """Take over what came from upstream and wake everybody. None: nothing has come yet."""
        if whole is not None:
            if whole.version != self._shelf.newest:
                self._metrics.received_versions.inc()
            self._shelf.put(whole)
            self._metrics.policy_version.set(whole.version.number)
            self._metrics.held_bytes.set(self._shelf.nbytes)
        if status is not None and status != self._status:
            self._status = status
            self._status_message = parameters_pb2.WatchVersionsResponse(
                run_state=messages.status_to_proto(status)
            ).SerializeToString()
        self._wake()

    def drain(self) -> None:
        """End every watch once the version it is sending is whole."""
        self._draining = True
        self._wake()

    async def watch(self, data: bytes, context: Context) -> None:
        """rpc WatchVersions."""
        async with answering_async(context):
            try:
                request = parameters_pb2.WatchVersionsRequest.FromString(data)
            except DecodeError as error:
                raise InvalidDataError("a request that is no WatchVersionsRequest") from error
            check(self._handshake, Handshake.from_proto(request.handshake))
            have = messages.version_from_proto(request.have) if request.HasField("have") else None
            with self._counted():
                await self._watch(have, context)

    async def _watch(self, have: PolicyVersion | None, context: Context) -> None:
        known: RunStatus | None = None
        loop = asyncio.get_running_loop()
        until = loop.time() + self._watch_age_s * random.uniform(0.75, 1.25)
        while not self._draining and loop.time() < until:
            news = self._news
            newest, status = self._shelf.newest, self._status
            if newest is not None and (have is None or newest > have):
                have = await self._send(have, context)
            elif status is not None and _differ(status, known):
                await self._write(self._status_message, context)
                known = status
            else:
                try:
                    async with asyncio.timeout(min(self._heartbeat_s, until - loop.time())):
                        await news.wait()
                except TimeoutError:
                    if self._upstream_silent_s() < self._outage_s and loop.time() < until:
                        known = None  # say it again

    async def _send(self, have: PolicyVersion | None, context: Context) -> PolicyVersion | None:
        """Send the newest version. Returns what the watcher has then: ``have`` if it was cut off."""
        reading = self._shelf.read()
        try:
            while (message := reading.next()) is not None:
                await self._write(message, context)
                self._metrics.sent_bytes.inc(len(message))
        finally:
            reading.close()
            self._metrics.held_bytes.set(self._shelf.nbytes)
        if not reading.whole:
            self._metrics.begun_again.inc()
            return have
        self._metrics.sent_versions.inc()
        if have is not None:
            self._metrics.skipped_versions.inc(max(0, reading.version.number - have.number - 1))
        return reading.version

    async def _write(self, message: bytes, context: Context) -> None:
        try:
            async with asyncio.timeout(STALL_S):
                await context.write(message)
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, f"a message was not read within {STALL_S:.0f} s; connect again"
            )

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        if self._watchers >= self._max_watchers:
            raise ExhaustedError(
                f"all {self._max_watchers} places for watchers of this relay are taken "
                "(paramserver.max_watchers)"
            )
        self._watchers += 1
        self._metrics.watchers.set(self._watchers)
        try:
            yield
        finally:
            self._watchers -= 1
            self._metrics.watchers.set(self._watchers)


class RelayHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic only in the stubs
    """Finds the handler of a method: the servicer's own, or one that hands the call upstream."""

    def __init__(self, servicer: RelayServicer, forwarder: Forwarder) -> None:
        self._handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        for service in parameters_service_pb2.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                path = f"/{service.full_name}/{method.name}"
                self._handlers[path] = forwarder.handler(
                    path, requests_stream=method.client_streaming, answers_stream=method.server_streaming
                )
        watch: Any = servicer.watch
        self._handlers[_WATCH] = grpc.unary_stream_rpc_method_handler(watch)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """None: there is no such method."""
        return self._handlers.get(details.method)


def _differ(status: RunStatus, known: RunStatus | None) -> bool:
    return known is None or (status.phase, status.reason) != (known.phase, known.reason)
