from __future__ import annotations

import numpy as np
import pytest

from headrace.clients.retry import call_until_answered
from headrace.errors import (
    ChecksumError,
    ExhaustedError,
    FencedError,
    HandshakeError,
    HeadraceError,
    InvalidDataError,
    UnavailableError,
)
from headrace.rpc.backoff import Backoff


class World:
    """A server that fails in a given order, and a clock that only waiting moves."""

    def __init__(self, *failures: HeadraceError) -> None:
        self.failures = list(failures)
        self.attempts = 0
        self.now = 0.0
        self.give_up_after_s = float("inf")

    def attempt(self) -> str:
        self.attempts += 1
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.now > self.give_up_after_s

    def call(self, timeout_s: float | None = None) -> str:
        return call_until_answered(
            self.attempt,
            backoff=Backoff(0.1, 1.0, np.random.default_rng(0)),
            wait=self.wait,
            timeout_s=timeout_s,
            clock=lambda: self.now,
        )


def away() -> UnavailableError:
    return UnavailableError("connection refused")


def test_a_server_that_is_away_is_called_until_it_answers() -> None:
    world = World(*(away() for _ in range(50)))
    assert world.call() == "answer"
    assert world.attempts == 51


@pytest.mark.parametrize("refusal", [HandshakeError("no"), FencedError("no"), InvalidDataError("no")])
def test_a_refusal_is_raised_at_once(refusal: HeadraceError) -> None:
    world = World(refusal)
    with pytest.raises(type(refusal)):
        world.call()
    assert world.attempts == 1


def test_a_deadline_ends_it_with_the_last_error() -> None:
    world = World(*(away() for _ in range(1000)))
    with pytest.raises(UnavailableError, match="connection refused"):
        world.call(timeout_s=5.0)
    assert 3.0 < world.now <= 5.0


def test_whoever_gives_up_has_had_one_attempt() -> None:
    world = World(away(), away())
    world.give_up_after_s = 0.0
    with pytest.raises(UnavailableError):
        world.call()
    assert world.attempts == 1


def test_bytes_that_are_altered_every_time_are_not_asked_for_for_ever() -> None:
    world = World(*(ChecksumError("altered") for _ in range(1000)))
    with pytest.raises(ChecksumError):
        world.call()
    assert world.attempts == 5


def test_a_server_without_room_is_called_again() -> None:
    assert World(ExhaustedError("full"), away()).call() == "answer"
