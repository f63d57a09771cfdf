"""Handshake, backoff, errors, drain and limits: what every service and client shares."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from headrace.errors import (
    ChecksumError,
    CodecError,
    ConfigurationError,
    CredentialsError,
    ExhaustedError,
    HandshakeError,
    HeadraceError,
    InvalidDataError,
    NonFiniteError,
    UnavailableError,
)
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import is_loopback
from headrace.rpc.drain import Drain
from headrace.rpc.errors import MAX_DETAIL_BYTES, details_of, is_fatal, status_of
from headrace.rpc.handshake import Handshake, check

OWN = Handshake("run", "d1", "[1]", "learner-0", json.dumps({"a": 1, "b": {"c": 2}}))


def refusal(theirs: Handshake) -> str:
    with pytest.raises(HandshakeError) as caught:
        check(OWN, theirs)
    return str(caught.value)


def test_equal_ends_and_an_end_without_an_environment_pass() -> None:
    check(OWN, OWN)
    check(OWN, Handshake("run", "d1"))


def test_everything_that_differs_is_named_at_once() -> None:
    theirs = Handshake("other", "d2", "[1]", "s/1", json.dumps({"a": 1, "b": {"c": 3}}), protocol_version=2)
    sentence = refusal(theirs)
    for words in ("refused s/1", "wire protocol 2 against 1", "run id 'other'", "b.c differs"):
        assert words in sentence


def test_many_differing_keys_are_counted() -> None:
    theirs = Handshake("run", "d2", config_json=json.dumps({f"k{index:02}": 0 for index in range(30)}))
    assert "22 more differ" in refusal(theirs)


def test_a_handshake_survives_the_wire() -> None:
    assert Handshake.from_proto(OWN.to_proto()) == OWN


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HandshakeError("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (ConfigurationError(["x"]), grpc.StatusCode.FAILED_PRECONDITION),
        (CodecError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (InvalidDataError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (NonFiniteError("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (ChecksumError("x"), grpc.StatusCode.DATA_LOSS),
        (CredentialsError("x"), grpc.StatusCode.UNAUTHENTICATED),
        (UnavailableError("x"), grpc.StatusCode.UNAVAILABLE),
        (ExhaustedError("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (HeadraceError("x"), grpc.StatusCode.INTERNAL),
    ],
)
def test_status_codes(error: HeadraceError, code: grpc.StatusCode) -> None:
    assert status_of(error) is code


def test_only_what_retrying_cannot_help_is_fatal() -> None:
    assert is_fatal(HandshakeError("x"))
    assert not is_fatal(UnavailableError("x"))
    assert not is_fatal(ExhaustedError("x"))
    assert not is_fatal(CredentialsError("x"))


def test_long_details_are_cut_to_what_a_status_carries() -> None:
    assert len(details_of(HeadraceError("ä" * 10_000)).encode()) <= MAX_DETAIL_BYTES
    assert details_of(HeadraceError("short")) == "short"


def test_backoff_doubles_up_to_a_cap_with_half_of_it_jitter() -> None:
    backoff = Backoff(1.0, 8.0, np.random.default_rng(0))
    waits = [backoff.next_s() for _ in range(100)]
    for wait, ceiling in zip(waits, [1.0, 2.0, 4.0] + [8.0] * 97, strict=True):
        assert ceiling / 2 <= wait <= ceiling
    assert len(set(waits)) == 100
    backoff.reset()
    assert backoff.next_s() <= 1.0


def test_clients_that_lost_the_same_peer_spread_out() -> None:
    seeds = np.random.SeedSequence(0).spawn(50)
    firsts = [Backoff(1.0, 8.0, np.random.default_rng(seed)).next_s() for seed in seeds]
    assert np.std(firsts) > 0.1


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("10.0.0.1:1", False),
        ("learner-0.learner:50051", False),
    ],
)
def test_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


@pytest.fixture
def drain() -> Iterator[Drain]:
    old = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    drain = Drain()
    drain.install()
    yield drain
    for number, handler in old.items():
        signal.signal(number, handler)


def test_the_first_signal_asks_for_a_drain(drain: Drain) -> None:
    assert not drain.requested
    os.kill(os.getpid(), signal.SIGTERM)
    assert drain.wait(5.0)
    assert drain.reason == "SIGTERM"
    drain.request("later")
    assert drain.reason == "SIGTERM"


def test_the_second_signal_stops_hard() -> None:
    program = (
        "import os, signal\n"
        "from headrace.rpc.drain import Drain\n"
        "drain = Drain(); drain.install()\n"
        "os.kill(os.getpid(), signal.SIGTERM); assert drain.wait(5)\n"
        "print('draining', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('still here')\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout == "draining\n"
    assert result.returncode == -signal.SIGINT


def test_refused_credentials_are_retried_slowly_and_said_once_a_minute() -> None:
    now = [0.0]
    backoff = Backoff(0.05, 1.0, np.random.default_rng(0), clock=lambda: now[0])
    said = []
    for second in range(0, 180, 5):
        now[0] = float(second)
        pause = backoff.after(CredentialsError("no"))
        assert 2.5 <= pause.seconds <= 5.0
        said += [second] if pause.loud else []
    assert said == [0, 60, 120]


def test_other_outages_are_retried_as_quickly_as_ever() -> None:
    backoff = Backoff(0.05, 1.0, np.random.default_rng(0))
    assert backoff.after(UnavailableError("gone")).loud
    assert not backoff.after(UnavailableError("gone")).loud
    assert backoff.after(UnavailableError("gone")).seconds <= 0.2
    backoff.reset()
    assert backoff.after(UnavailableError("gone")).loud
