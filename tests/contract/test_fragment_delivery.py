"""Fragments arrive once, in order, whatever happens to the connection or the learner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pipe import FRAGMENT_BYTES, WAIT_S, B, Learner, T, make_config, make_fragment, make_sender, produce

from headrace.clients.fragments import FragmentSender
from headrace.clients.outbox import Outbox
from headrace.codec.slab import SlabWriter
from headrace.config.sections import Config
from headrace.flow.messages import Grant
from headrace.testing.proxy import Proxy
from headrace.types import OBSERVATION, Fragment
from headrace.v1 import trajectory_pb2

Start = Callable[..., Learner]
Connect = Callable[..., FragmentSender]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start learners that end with the test."""
    learners: list[Learner] = []

    def make(config: Config | None = None, **changes: Any) -> Learner:
        learners.append(Learner(config or make_config(), **changes))
        return learners[-1]

    yield make
    for learner in learners:
        learner.close()


@pytest.fixture
def learner(start: Start) -> Learner:
    return start()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Start senders that end with the test."""
    senders: list[FragmentSender] = []

    def make(address: str, **changes: Any) -> FragmentSender:
        senders.append(make_sender(address, **changes))
        return senders[-1]

    yield make
    for sender in senders:
        sender.close()


def sequences(learner: Learner) -> list[int]:
    return [fragment.id.sequence for fragment in learner.trained]


def test_every_fragment_is_trained_once_and_settled(learner: Learner, connect: Connect) -> None:
    learner.start_training()
    sender = connect(learner.server.address)
    produce(sender, 0, 100)
    assert sender.drain("done", WAIT_S)
    assert sequences(learner) == list(range(100))
    assert sender.settled_through == 99
    assert sender.unsettled_bytes == 0
    for fragment in learner.trained:
        assert (fragment.columns[OBSERVATION] == fragment.id.sequence).all()


def test_without_a_consumer_the_sender_is_parked_with_bounded_bytes(connect: Connect, start: Start) -> None:
    capacity = 2**16
    learner = start(make_config(capacity_bytes=capacity))
    sender = connect(learner.server.address)
    sent = 0
    while sender.acquire(acting_version=lambda: 0, timeout_s=1.0) is not None:
        sender.send(make_fragment(sent))
        sent += 1
    assert sender.wait_reason == "credit"
    assert sender.wait_seconds["credit"] > 0.5
    assert 0 < sent <= capacity // FRAGMENT_BYTES
    assert sender.unsettled_bytes <= capacity
    assert sender.fatal is None
    learner.start_training()
    assert sender.acquire(acting_version=lambda: 0, timeout_s=WAIT_S) is not None


def test_fragments_larger_than_announced_still_get_through(connect: Connect, start: Start) -> None:
    learner = start(make_config(capacity_bytes=2**16, paced=True, lag=0))
    learner.start_training()
    sender = connect(learner.server.address)
    for sequence in range(20):
        ticket = sender.acquire(acting_version=lambda: learner.version.number, timeout_s=WAIT_S)
        assert ticket is not None, sender.wait_reason
        version = learner.version.number
        sender.send(make_fragment(sequence, width=6, version=version, permit=ticket.permit))
    assert sender.drain("done", WAIT_S)


def test_a_killed_learner_loses_nothing_and_trains_nothing_twice(connect: Connect, start: Start) -> None:
    first = start()
    first.start_training()
    sender = connect(first.server.address)
    produce(sender, 0, 31)
    first.close()
    second = start(
        make_config(), port=first.server.port, accounts=first.accounts, version=first.version.number
    )
    second.start_training()
    produce(sender, 31, 60)
    assert sender.drain("done", WAIT_S)
    assert sequences(first) + sequences(second) == list(range(60))


def test_a_cut_connection_is_reopened_and_nothing_is_doubled(learner: Learner, connect: Connect) -> None:
    with Proxy("127.0.0.1", learner.server.port) as proxy:
        sender = connect(proxy.address)
        for cut in range(5):
            # Nobody consumes yet, so what is cut off is on its way or unsettled.
            produce(sender, 10 * cut, 10 * (cut + 1))
            proxy.cut()
            proxy.resume()
        learner.start_training()
        produce(sender, 50, 60)
        assert sender.drain("done", WAIT_S)
        assert sequences(learner) == list(range(60))
        assert sender.fatal is None


def test_a_silent_network_parks_the_sender_and_then_goes_on(learner: Learner, connect: Connect) -> None:
    learner.start_training()
    with Proxy("127.0.0.1", learner.server.port) as proxy:
        sender = connect(proxy.address)
        produce(sender, 0, 10)
        proxy.pause()
        sent = 10
        while sender.acquire(acting_version=lambda: 0, timeout_s=0.2) is not None:
            sender.send(make_fragment(sent))
            sent += 1
        assert sender.wait_reason == "credit"
        assert sender.unsettled_bytes <= 2**20
        proxy.resume()
        produce(sender, sent, sent + sent % 2)  # an update takes two
        sent += sent % 2
        assert sender.drain("done", WAIT_S)
        assert sequences(learner) == list(range(sent))


def test_lockstep_makes_progress_and_lag_stays_zero(connect: Connect, start: Start) -> None:
    learner = start(make_config(paced=True, lag=0))
    learner.start_training()
    sender = connect(learner.server.address)
    for sequence in range(40):
        ticket = sender.acquire(acting_version=lambda: learner.version.number, timeout_s=WAIT_S)
        assert ticket is not None
        assert learner.version.number >= ticket.min_version
        sender.send(make_fragment(sequence, version=learner.version.number, permit=ticket.permit))
    assert sender.drain("done", WAIT_S)
    assert [fragment.policy_version.number for fragment in learner.trained] == [n // 2 for n in range(40)]


def test_waiting_for_parameters_is_named(learner: Learner, connect: Connect) -> None:
    sender = connect(learner.server.address)
    assert sender.acquire(acting_version=lambda: -1, timeout_s=0.5) is None
    assert sender.wait_reason == "parameters"
    assert sender.wait_seconds["parameters"] > 0


def test_waiting_for_a_connection_is_named(connect: Connect, start: Start) -> None:
    learner = start()
    address = learner.server.address
    learner.close()
    sender = connect(address)
    assert sender.acquire(acting_version=lambda: 0, timeout_s=0.3) is None
    assert sender.wait_reason == "connection"
    assert sender.fatal is None
    assert sender.drain("nobody there", 0.1)  # nothing is unsettled


def test_large_fragments_travel_in_parts(learner: Learner, connect: Connect) -> None:
    events: list[str] = []
    sender = connect(learner.server.address, message_bytes=4096, on_event=lambda kind, _: events.append(kind))
    learner.start_training()
    rng = np.random.default_rng(3)
    content = rng.normal(size=(8, 4, 300)).astype(np.float32)

    def make(sequence: int) -> Fragment:
        fragment = make_fragment(sequence)
        columns = {**fragment.columns, OBSERVATION: content + sequence}
        return make_fragment(sequence, columns=columns)

    produce(sender, 0, 12, make)
    assert sender.drain("done", WAIT_S)
    assert sequences(learner) == list(range(12))
    for fragment in learner.trained:
        np.testing.assert_array_equal(fragment.columns[OBSERVATION], content + fragment.id.sequence)
    assert events == ["connected"]


def test_the_learner_hears_goodbye_and_the_report(learner: Learner, connect: Connect) -> None:
    learner.start_training()
    sender = connect(learner.server.address)
    produce(sender, 0, 4)
    sender.report(produced=200, discarded={"non_finite": 72})
    assert sender.drain("SIGTERM", WAIT_S)
    (report,) = learner.intake.reports.values()
    assert (report.produced, dict(report.discarded)) == (200, {"non_finite": 72})
    assert learner.intake.num_streams == 0


def test_close_returns_while_parked(connect: Connect, start: Start) -> None:
    learner = start(make_config(capacity_bytes=2**16))
    sender = connect(learner.server.address)
    got: list[object] = []
    waiter = threading.Thread(
        target=lambda: got.append(sender.acquire(acting_version=lambda: -1, timeout_s=WAIT_S))
    )
    waiter.start()
    sender.close()
    waiter.join(WAIT_S)
    assert got == [None]


def test_grants_are_cumulative_so_a_repeated_one_gives_nothing() -> None:
    outbox = Outbox(100)
    outbox.opened(-1, paced=False)
    outbox.grant(Grant(100))
    outbox.grant(Grant(100))
    assert outbox.blocked_by(0) == ""
    outbox.add(make_fragment(0))
    assert outbox.blocked_by(0) == "credit"


def test_shared_memory_carries_fragments_and_gives_pages_back(learner: Learner, connect: Connect) -> None:
    learner.start_training()
    events: list[str] = []
    sender = connect(
        learner.server.address,
        codec="shared_memory",
        fragment_bytes=make_fragment(0, width=400).nbytes,
        slab_bytes=2**20,  # sixteen pages: used many times over
        on_event=lambda kind, _: events.append(kind),
    )
    content = np.random.default_rng(1).normal(size=(T, B, 400)).astype(np.float32)

    def make(sequence: int) -> Fragment:
        fragment = make_fragment(sequence)
        return make_fragment(sequence, columns={**fragment.columns, OBSERVATION: content + sequence})

    for start in range(0, 200, 20):
        produce(sender, start, start + 20, make)
        assert sender.unsettled_bytes <= 2**20
        while learner.trained:
            trained = learner.trained.pop(0)
            np.testing.assert_array_equal(trained.columns[OBSERVATION], content + trained.id.sequence)
            assert not trained.columns[OBSERVATION].flags.writeable
    assert sender.drain("done", WAIT_S)
    assert events == ["connected"]


def test_without_a_common_node_shared_memory_falls_back_in_words(
    learner: Learner, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = SlabWriter.describe

    def from_elsewhere(slab: SlabWriter) -> trajectory_pb2.Slab:
        message = describe(slab)
        message.pid = 2**22 + 1  # beyond what Linux gives out
        return message

    monkeypatch.setattr(SlabWriter, "describe", from_elsewhere)
    events: list[tuple[str, str]] = []
    learner.start_training()
    sender = connect(
        learner.server.address, codec="shared_memory", on_event=lambda *event: events.append(event)
    )
    produce(sender, 0, 10)
    assert sender.drain("done", WAIT_S)
    assert [kind for kind, _ in events] == ["connected", "fallback"]
    assert "another node" in events[1][1]
    assert sequences(learner) == list(range(10))
