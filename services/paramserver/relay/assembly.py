"""Puts a relay together and takes it down again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from headrace.clients.relaying import WholeVersionWatch
from headrace.clients.watching import OnEvent
from headrace.config.digest import config_json
from headrace.config.process import ProcessConfig
from headrace.events import EventLog
from headrace.metrics import start_metrics_server
from headrace.registry import announce
from headrace.rpc.drain import Drain
from headrace.rpc.entry import Ready
from headrace.rpc.event_loop_server import EventLoopServer
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import split_address
from services.paramserver.metrics import RelayMetrics
from services.paramserver.relay.forwarding import Forwarder
from services.paramserver.relay.servicer import (
    HEARTBEAT_S,
    OUTAGE_S,
    SERVICE_NAMES,
    WATCH_AGE_S,
    RelayHandlers,
    RelayServicer,
)

_SPARE_CALLS = 1024  # calls handed upstream, health, and watches that are told there is no place
_GRACE_S = 2.0
_TICK_S = 0.5


class Relay:
    """A relay that serves, in this process. Health says so once it has heard from upstream."""

    def __init__(
        self,
        *,
        upstream: str,
        handshake: Handshake,
        listen: str,
        max_watchers: int,
        metrics: RelayMetrics,
        on_event: OnEvent,
        heartbeat_s: float = HEARTBEAT_S,
        outage_s: float = OUTAGE_S,
        watch_age_s: float = WATCH_AGE_S,
    ) -> None:
        """Serve. ``upstream`` is ``host:port``. ConfigurationError: ``listen`` can't be listened on."""
        self.metrics = metrics
        self._serving = False
        self._servicer: RelayServicer
        self._forwarder: Forwarder

        self._watch = WholeVersionWatch(upstream, handshake, on_event=on_event, on_change=self._on_change)

        def make_handlers() -> Sequence[grpc.GenericRpcHandler[Any, Any]]:
            self._servicer = RelayServicer(
                handshake,
                max_watchers=max_watchers,
                metrics=metrics,
                upstream_silent_s=lambda: self._watch.silent_s,
                heartbeat_s=heartbeat_s,
                outage_s=outage_s,
                watch_age_s=watch_age_s,
            )
            self._forwarder = Forwarder(upstream)
            return (RelayHandlers(self._servicer, self._forwarder),)

        try:
            self.server = EventLoopServer(
                address=listen,
                make_handlers=make_handlers,
                close=lambda: self._forwarder.close(),
                service_names=SERVICE_NAMES,
                max_calls=max_watchers + _SPARE_CALLS,
                setting="network.relay_port",
            )
        except BaseException:
            self._watch.stop()
            raise
        self._watch.start()

    @property
    def address(self) -> str:
        """``host:port`` to connect to."""
        return self.server.address

    @property
    def is_serving(self) -> bool:
        """Whether it has heard from upstream."""
        return self._serving

    def on_time(self) -> None:
        """Time has passed: see to metrics and health. HeadraceError: upstream has refused this relay."""
        if self._watch.fatal is not None:
            raise self._watch.fatal
        self.metrics.upstream_silent_seconds.set(self._watch.silent_s)

    def close(self) -> None:
        """End all watches in order, within seconds. Idempotent."""
        self.server.call_soon(self._servicer.drain)
        self._watch.stop()
        self.server.stop(_GRACE_S)

    def _on_change(self) -> None:
        self.server.call_soon(self._refresh)
        if self._watch.told is not None and not self._serving:
            self._serving = True
            self.server.set_serving(True)

    def _refresh(self) -> None:
        """In the loop. What is newest is looked up only here: behind a busy loop no versions queue up."""
        self._servicer.refresh(self._watch.newest(), self._watch.told)


def run_relay(process: ProcessConfig, drain: Drain, ready: Ready) -> None:
    """Pass versions on until told to drain."""
    metrics = RelayMetrics(CollectorRegistry())
    metrics.identify(process.config_digest)
    host, _port = split_address(process.listen)
    port = start_metrics_server(host, process.metrics_port, metrics.registry)
    events = EventLog(process.run_dir, process.name)
    relay = Relay(
        upstream=process.paramserver,
        handshake=Handshake(
            process.run_id,
            process.config_digest,
            peer=process.name,
            config_json=config_json(process.config),
        ),
        listen=process.listen,
        max_watchers=process.config.paramserver.max_watchers,
        metrics=metrics,
        on_event=lambda kind, sentence: events.emit(kind, reason=sentence),
    )
    announce(process.run_dir, "relay", process.index, address=relay.address, metrics_port=port)
    try:
        while not drain.wait(_TICK_S):
            relay.on_time()
            if relay.is_serving:
                ready()
    finally:
        relay.close()
