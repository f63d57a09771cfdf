"""The watcher against servers that lie, break off or come back, over a real channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from paramserving import PATIENCE_S, eventually, make_handshake, make_parameters, make_settings

from headrace.checkpoint import Blob
from headrace.clients import messages
from headrace.clients.blobs import ACTING, chunks_of, manifest_of
from headrace.clients.parameters import SnapshotWatcher
from headrace.rpc.server import RunningServer, serve
from headrace.types import PolicyVersion
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc
from services.paramserver.config import Settings

Script = Callable[[parameters_pb2.WatchVersionsRequest], Iterator[parameters_pb2.WatchVersionsResponse]]


class Scripted(parameters_service_pb2_grpc.ParameterServiceServicer):
    """Answers the n-th watch with the n-th script; the last one stays."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.requests: list[parameters_pb2.WatchVersionsRequest] = []

    def WatchVersions(self, request: Any, context: Any) -> Iterator[parameters_pb2.WatchVersionsResponse]:
        self.requests.append(request)
        return self.scripts[min(len(self.requests), len(self.scripts)) - 1](request)


@contextmanager
def scripted(*scripts: Script) -> Iterator[tuple[Scripted, RunningServer]]:
    servicer = Scripted(*scripts)
    add = partial(parameters_service_pb2_grpc.add_ParameterServiceServicer_to_server, servicer)
    server = serve(address="127.0.0.1:0", register=(add,), max_streams=4)
    try:
        yield servicer, server
    finally:
        server.stop(0.0)


@contextmanager
def watching(server: RunningServer, settings: Settings) -> Iterator[tuple[SnapshotWatcher, list[str]]]:
    heard: list[str] = []
    watcher = SnapshotWatcher(
        server.address,
        make_handshake(settings, "sampler-0/0"),
        on_event=lambda _kind, sentence: heard.append(sentence),
    )
    watcher.start()
    try:
        yield watcher, heard
    finally:
        watcher.stop()


def version_messages(number: int, *, sha256: str | None = None, epoch: int = 1) -> list[Any]:
    blob = Blob.encode(make_parameters(number, size=2**20))
    manifest = parameters_pb2.VersionManifest(
        version=messages.version_to_proto(PolicyVersion(epoch, number)),
        blobs=[manifest_of(ACTING, blob if sha256 is None else Blob(blob.data, sha256))],
    )
    chunks = [parameters_pb2.WatchVersionsResponse(chunk=chunk) for chunk in chunks_of(ACTING, blob)]
    return [parameters_pb2.WatchVersionsResponse(manifest=manifest), *chunks]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.mark.parametrize(
    ("lie", "word"),
    [
        (version_messages(9, sha256="0" * 64), "sha256"),
        (version_messages(9)[:-1], "ended the stream"),
        (version_messages(9)[1:], "not announced"),
        ([version_messages(9)[0], version_messages(9)[2]], "expected the piece at byte 0"),
    ],
    ids=["wrong hash", "breaks off", "no manifest", "a piece is missing"],
)
def test_nothing_is_used_before_its_hash_matched(settings: Settings, lie: list[Any], word: str) -> None:
    with scripted(lambda _request: iter(lie), lambda _request: iter(version_messages(3))) as (_, server):
        with watching(server, settings) as (watcher, heard):
            snapshot = watcher.wait_newer(None, PATIENCE_S)
            assert snapshot is not None
            assert snapshot.version.number == 3
            assert word in heard[0]


def test_an_older_version_is_never_taken(settings: Settings) -> None:
    old_then_newer = [*version_messages(2), *version_messages(5)]
    with scripted(lambda _request: iter(version_messages(4)), lambda _request: iter(old_then_newer)) as (
        _,
        server,
    ):
        with watching(server, settings) as (watcher, _heard):
            seen, than = [], None
            while not seen or seen[-1] != 5:
                snapshot = watcher.wait_newer(than, PATIENCE_S)
                assert snapshot is not None
                than = snapshot.version
                seen.append(than.number)
            assert seen == [4, 5]


def test_after_a_reconnect_it_asks_for_what_is_newer_than_it_has(settings: Settings) -> None:
    with scripted(lambda _request: iter(version_messages(4))) as (servicer, server):
        with watching(server, settings) as (_watcher, _heard):
            eventually(lambda: len(servicer.requests) >= 2, "it reconnects")
    assert not servicer.requests[0].HasField("have")
    assert messages.version_from_proto(servicer.requests[1].have) == PolicyVersion(1, 4)


def test_stopping_ends_every_wait(settings: Settings) -> None:
    watcher = SnapshotWatcher("127.0.0.1:1", make_handshake(settings))
    watcher.start()
    watcher.stop()
    assert watcher.wait_newer(None, PATIENCE_S) is None
    watcher.stop()
