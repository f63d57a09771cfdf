"""Joining a run and reporting to its books, over a real channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from paramserving import (
    PATIENCE_S,
    eventually,
    make_account,
    make_handshake,
    make_parameters,
    make_report,
    make_settings,
    serving,
)

from headrace.accounts import read_accounts
from headrace.clients.joining import AccountReporter, Seat, join_run
from headrace.clients.parameters import PublishClient
from headrace.clients.run import RunClient
from headrace.cold_accounts import ColdCounts
from headrace.errors import ExhaustedError, HandshakeError
from headrace.flow.ledger import SamplerAccount
from headrace.rpc.handshake import Handshake
from headrace.types import LedgerGlance, SamplerIdentity
from services.paramserver.assembly import Paramserver
from services.paramserver.config import Settings

REPLAY = {"environment": {"id": "CartPole-v1"}, "algorithm": {"name": "dqn"}}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path, sampler={"count": 1, "max_count": 2})


@pytest.fixture
def server(settings: Settings) -> Iterator[Paramserver]:
    with serving(settings) as running:
        yield running


def join(server: Paramserver, settings: Settings, name: str = "pod", instance: str = "a") -> Seat:
    """A place, or the refusal at once."""
    handshake = make_handshake(settings, name)
    return join_run(
        server.server.address, handshake, name=name, instance=instance, wait=lambda _seconds: True
    )


def report(
    server: Paramserver, settings: Settings, seat: Seat | None, *accounts: SamplerAccount
) -> AccountReporter:
    """Report once."""
    reporter = AccountReporter(
        server.server.address,
        make_handshake(settings),
        name="pod" if seat is None else seat.name,
        seat=seat,
        samplers=lambda: accounts,
    )
    reporter.close(0.0)
    return reporter


def books(server: Paramserver, settings: Settings) -> LedgerGlance:
    client = RunClient(server.server.address, make_handshake(settings))
    try:
        return client.ledger()
    finally:
        client.close()


def test_a_sampler_is_given_a_number_an_incarnation_and_a_learner(
    server: Paramserver, settings: Settings
) -> None:
    seat = join(server, settings)
    assert (seat.index, seat.identity, seat.learner) == (0, SamplerIdentity("sampler-0", 0), 0)
    assert join(server, settings) == seat
    assert join(server, settings, "other").identity == SamplerIdentity("sampler-1", 0)
    with pytest.raises(ExhaustedError, match="as many as"):
        join(server, settings, "third")


def test_another_configuration_is_let_in_nowhere(server: Paramserver, settings: Settings) -> None:
    stranger = Handshake("run", "another", peer="pod")
    with pytest.raises(HandshakeError):
        join_run(server.server.address, stranger, name="pod", instance="a", wait=lambda _seconds: True)


def test_what_is_reported_is_in_the_books_and_on_disk(server: Paramserver, settings: Settings) -> None:
    seat = join(server, settings)
    account = SamplerAccount(
        seat.identity, produced=100, discarded={"fault_hang": 4}, sealed=64, open=32, last_sequence=3
    )
    assert report(server, settings, seat, account).num_told == 1
    ledger = books(server, settings)
    assert (ledger.produced, ledger.in_flight, ledger.dropped) == (100, 96, {"fault_hang": 4})
    assert ledger.balanced
    assert [(member.name, member.produced) for member in ledger.members] == [("pod", 100)]
    assert read_accounts(settings.run_dir) == [account]


def test_an_older_report_changes_nothing_and_the_last_word_stays(
    server: Paramserver, settings: Settings
) -> None:
    seat = join(server, settings)
    last = SamplerAccount(seat.identity, produced=100, sealed=100, last_sequence=3, state="drained")
    report(server, settings, seat, last)
    report(server, settings, seat, SamplerAccount(seat.identity, produced=40, sealed=40))
    report(server, settings, seat, SamplerAccount(seat.identity, produced=140, sealed=140))
    ledger = books(server, settings)
    assert (ledger.produced, ledger.members) == (100, ())


def test_nobody_makes_accounts_by_reporting_them(server: Paramserver, settings: Settings) -> None:
    stranger = SamplerAccount(SamplerIdentity("sampler-7", 0), produced=5, open=5)
    assert "nobody was ever let in" in str(report(server, settings, None, stranger).fatal)
    assert read_accounts(settings.run_dir) == []


def test_what_is_trained_before_it_is_reported_balances(server: Paramserver, settings: Settings) -> None:
    seat = join(server, settings)
    report(server, settings, seat, SamplerAccount(seat.identity, produced=20, sealed=16, open=4))
    learner = PublishClient(server.server.address, make_handshake(settings))
    first = learner.publish(None, make_parameters(), None, make_report(0), [], timeout_s=PATIENCE_S)
    learner.publish(
        first.version, make_parameters(), None, make_report(1), [make_account(settled=3, trained=64)],
        timeout_s=PATIENCE_S,
    )  # fmt: skip
    learner.close()
    ledger = books(server, settings)
    assert (ledger.produced, ledger.trained, ledger.balanced) == (64, 64, True)
    # The last word of who leaves is not touched: here something was counted twice.
    report(server, settings, seat, SamplerAccount(seat.identity, produced=60, sealed=60, state="drained"))
    assert "counted twice" in " ".join(books(server, settings).problems)


def test_cold_accounts_of_partitions_add_up(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, **REPLAY)
    with serving(settings) as server:
        seat = join(server, settings)
        report(server, settings, seat, SamplerAccount(seat.identity, produced=100, sealed=96, open=4))
        counts = ColdCounts(received=64, active=40, evicted=24)
        reporter = AccountReporter(
            server.server.address,
            make_handshake(settings),
            name="replay-0",
            cold=lambda: [(seat.identity, counts)],
        )
        assert reporter.close(0.0)
        ledger = books(server, settings)
        assert (ledger.stored, ledger.evicted, ledger.in_flight) == (40 + 32, 24, 4)
        assert ledger.balanced


def test_one_whose_name_is_taken_over_hears_that_it_has_lost_its_place(
    server: Paramserver, settings: Settings
) -> None:
    seat = join(server, settings)
    account = SamplerAccount(seat.identity)
    told = threading.Event()
    reporter = AccountReporter(
        server.server.address,
        make_handshake(settings),
        name=seat.name,
        seat=seat,
        samplers=lambda: (account,),
        interval_s=0.01,
        on_event=lambda *_words: told.set(),
    )
    reporter.start()
    eventually(lambda: reporter.num_told > 0, "a first report")
    assert reporter.unseated == ""
    join(server, settings, instance="b")
    eventually(lambda: bool(reporter.unseated), "it hears of it")
    assert "has lost its place" in reporter.unseated
    reporter.close(0.0)
