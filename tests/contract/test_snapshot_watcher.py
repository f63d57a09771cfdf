"""The watcher against servers that lie, break off or come back, over a real channel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from paramserving import PATIENCE_S, eventually, make_handshake, make_settings
from scripted_watches import scripted, version_messages

from headrace.clients import messages
from headrace.clients.parameters import SnapshotWatcher
from headrace.rpc.server import RunningServer
from headrace.types import PolicyVersion
from services.paramserver.config import Settings


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
