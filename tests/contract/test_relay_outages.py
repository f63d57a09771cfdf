"""A relay whose upstream lies, goes silent, or is away, and one that goes away itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from paramserving import (
    PATIENCE_S,
    eventually,
    make_handshake,
    make_parameters,
    make_report,
    make_settings,
    serving,
)
from relaying import relaying, watching_raw
from scripted_watches import scripted, version_messages

from headrace.clients import messages
from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.types import PolicyVersion
from services.paramserver.config import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


@pytest.fixture
def watch(settings: Settings) -> Iterator[Any]:
    """Watches an address until the test is over."""
    watchers: list[SnapshotWatcher] = []

    def start(address: str) -> SnapshotWatcher:
        watchers.append(SnapshotWatcher(address, make_handshake(settings, "sampler-0/0")))
        watchers[-1].start()
        return watchers[-1]

    yield start
    for watcher in watchers:
        watcher.stop()


def publish(address: str, settings: Settings, base: PolicyVersion | None, updates: int) -> PolicyVersion:
    learner = PublishClient(address, make_handshake(settings))
    try:
        return learner.publish(
            base, make_parameters(updates), None, make_report(updates), [], timeout_s=PATIENCE_S
        ).version
    finally:
        learner.close()


def test_a_version_whose_hash_is_wrong_is_never_shown(settings: Settings) -> None:
    lie = version_messages(9, sha256="0" * 64)
    with scripted(lambda _request: iter(lie), lambda _request: iter(version_messages(3))) as (_, upstream):
        with (
            relaying(settings, upstream.address) as relay,
            watching_raw(relay.address, settings) as responses,
        ):
            first = next(response for response in responses if response.WhichOneof("kind") == "manifest")
    assert first.manifest.version.number == 3


def test_while_upstream_speaks_a_relay_says_again_where_the_run_is(settings: Settings) -> None:
    with (
        serving(settings) as primary,
        relaying(settings, primary.server.address, heartbeat_s=0.01) as relay,
        watching_raw(relay.address, settings) as responses,
    ):
        heard = [next(responses) for _ in range(3)]
    assert [response.WhichOneof("kind") for response in heard] == ["run_state"] * 3
    assert all(a.run_state.phase == b.run_state.phase for a, b in pairwise(heard))


def test_while_upstream_is_silent_a_relay_does_not_say_what_may_no_longer_hold(settings: Settings) -> None:
    with (
        serving(settings) as primary,
        relaying(settings, primary.server.address, heartbeat_s=0.001, outage_s=0.0) as relay,
    ):
        base = publish(primary.server.address, settings, None, 0)
        phases = []
        with watching_raw(relay.address, settings) as responses:
            for updates in range(1, 4):
                base = publish(primary.server.address, settings, base, updates)
                while (response := next(responses)).WhichOneof("kind") != "manifest":
                    phases += [response.run_state.phase] if response.HasField("run_state") else []
    assert len(phases) == len(set(phases)), "the run's state is said when it has changed, and not again"


def test_versions_go_on_upward_after_the_parameter_server_was_away(settings: Settings, watch: Any) -> None:
    with ExitStack() as before, ExitStack() as until_the_end:
        address = before.enter_context(serving(settings)).server.address
        first = publish(address, settings, None, 0)
        relay = until_the_end.enter_context(relaying(settings, address))
        watcher = watch(relay.address)
        assert watcher.wait_newer(None, PATIENCE_S).version == first
        before.close()
        until_the_end.enter_context(serving(settings, listen=address))
        second = publish(address, settings, first, 1)
        assert second.epoch > first.epoch
        snapshot = watcher.wait_newer(first, PATIENCE_S)
        assert (snapshot.version, snapshot.parameters["policy/weight"][0]) == (second, 1)


def test_after_a_relay_was_away_its_watchers_come_back_by_themselves(settings: Settings, watch: Any) -> None:
    with serving(settings) as primary:
        address = primary.server.address
        base = publish(address, settings, None, 0)
        with relaying(settings, address) as relay:
            place = relay.address
            watcher = watch(place)
            assert watcher.wait_newer(None, PATIENCE_S).version == base
        newer = publish(address, settings, base, 1)
        with relaying(settings, address, listen=place):
            assert watcher.wait_newer(base, PATIENCE_S).version == newer


def test_a_relay_that_is_behind_its_watcher_says_nothing_older(settings: Settings) -> None:
    with serving(settings) as primary:
        base = publish(primary.server.address, settings, None, 0)
        ahead = PolicyVersion(base.epoch, base.number + 1)
        with relaying(settings, primary.server.address) as relay:
            eventually(lambda: relay.metrics.held_bytes._value.get() > 0, "the relay has the version")
            with watching_raw(relay.address, settings, have=messages.version_to_proto(ahead)) as responses:
                assert next(responses).WhichOneof("kind") == "run_state"
                base = publish(primary.server.address, settings, base, 1)
                base = publish(primary.server.address, settings, base, 2)
                first = next(response for response in responses if response.WhichOneof("kind") == "manifest")
    assert messages.version_from_proto(first.manifest.version) == base


def test_a_relay_that_drains_ends_its_watches_in_order(settings: Settings) -> None:
    with serving(settings) as primary, relaying(settings, primary.server.address) as relay:
        with watching_raw(relay.address, settings) as responses:
            assert next(responses).WhichOneof("kind") == "run_state"
            relay.close()
            assert list(responses) == []
