"""Relays for tests: in this process on a real channel, and watches as they are on the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from paramserving import make_handshake, make_record
from prometheus_client import CollectorRegistry

from headrace.checkpoint import Blob
from headrace.clients import messages
from headrace.clients.blobs import ACTING, manifest_of
from headrace.clients.relaying import WholeVersion
from headrace.rpc.channel import open_channel
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc
from services.paramserver.config import Settings
from services.paramserver.metrics import RelayMetrics
from services.paramserver.relay.assembly import Relay


@contextmanager
def relaying(settings: Settings, upstream: str, *, index: int = 0, **options: Any) -> Iterator[Relay]:
    """A relay of ``upstream`` until the block is left; its metrics are ``relay.metrics``."""
    values: dict[str, Any] = {
        "upstream": upstream,
        "handshake": make_handshake(settings, f"relay-{index}"),
        "listen": "127.0.0.1:0",
        "max_watchers": settings.max_watchers,
        "metrics": RelayMetrics(CollectorRegistry()),
        "on_event": lambda _kind, _sentence: None,
    }
    relay = Relay(**(values | options))
    try:
        yield relay
    finally:
        relay.close()


def manifest_for(number: int, blob: Blob, *, epoch: int = 1) -> parameters_pb2.VersionManifest:
    """A manifest as the parameter server sends it."""
    record = make_record(number, epoch=epoch)
    return parameters_pb2.VersionManifest(
        version=messages.version_to_proto(record.version),
        config_digest=record.config_digest,
        blobs=[manifest_of(ACTING, blob)],
    )


def make_whole(number: int, *, epoch: int = 1, pieces: int = 3) -> WholeVersion:
    """A version of ``pieces`` messages after its manifest."""
    blob = Blob.of(bytes([number % 256]) * 16 * pieces)
    return WholeVersion.of(manifest_for(number, blob, epoch=epoch), blob, piece_bytes=16)


@contextmanager
def watching_raw(address: str, settings: Settings, **fields: Any) -> Iterator[Any]:
    """A watch as it is on the wire, read as slowly as the test likes."""
    channel: grpc.Channel = open_channel(address)
    stub = parameters_service_pb2_grpc.ParameterServiceStub(channel)
    request = parameters_pb2.WatchVersionsRequest(
        handshake=make_handshake(settings, "sampler-0").to_proto(), **fields
    )
    call = stub.WatchVersions(request)
    try:
        yield call
    finally:
        call.cancel()
        channel.close()
