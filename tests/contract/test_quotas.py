"""Over a real connection: a slow sampler hears of its quota, and one that dies is no longer waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import cycle

import pytest
from pipe import WAIT_S, Learner, T, make_config, make_fragment, make_sender

from headrace.clients.fragments import FragmentSender
from headrace.config.sections import Config
from headrace.types import SamplerIdentity

Connect = Callable[[Learner, SamplerIdentity], FragmentSender]

FAST, SLOW = SamplerIdentity("sampler-0", 1), SamplerIdentity("sampler-1", 1)


def paced(**sampler: object) -> Config:
    """Lockstep with two fragments in an update; nobody ever stops waiting."""
    document = make_config(paced=True, lag=0).model_dump()
    document["sampler"].update(sampler)
    document["stream"]["straggler_deadline_s"] = 1e6
    return Config.model_validate(document)


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def connect(closing: ExitStack) -> Connect:
    """Connect samplers to a learner; they leave with the test."""

    def make(learner: Learner, identity: SamplerIdentity) -> FragmentSender:
        others = learner.intake.num_streams
        sender = make_sender(learner.server.address, identity=identity)
        closing.callback(sender.close)
        wait_until(lambda: learner.intake.num_streams > others)
        return sender

    return make


def start(closing: ExitStack, config: Config) -> Learner:
    learner = Learner(config)
    closing.callback(learner.close)
    learner.start_training()
    return learner


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def deliver(
    learner: Learner,
    sender: FragmentSender,
    who: SamplerIdentity,
    sequence: int,
    speed: float = 0.0,
    wait_s: float = WAIT_S,
) -> int | None:
    """One fragment at ``speed``; returns the steps that were asked for, None: no leave in time."""
    ticket = sender.acquire(acting_version=lambda: learner.version.number, timeout_s=wait_s)
    if ticket is None:
        return None
    fragment = make_fragment(sequence, sampler=who, version=learner.version.number, permit=ticket.permit)
    sender.send(replace(fragment, steps_per_s=speed))
    return ticket.steps


def test_a_slow_sampler_is_asked_for_less_and_a_fast_one_for_all(
    closing: ExitStack, connect: Connect
) -> None:
    learner = start(closing, paced(leveling="auto"))
    fast, slow = connect(learner, FAST), connect(learner, SLOW)
    asked: dict[SamplerIdentity, list[int]] = {FAST: [], SLOW: []}

    senders = {FAST: (fast, 100.0), SLOW: (slow, 25.0)}
    turns = cycle(senders.items())
    # Both stay until the end, since whoever is alone isn't leveled; two fragments make an update.
    while min(map(len, asked.values())) < 20 or sum(map(len, asked.values())) % 2:
        who, (sender, speed) = next(turns)
        steps = deliver(learner, sender, who, len(asked[who]), speed, wait_s=0.01)
        asked[who] += [] if steps is None else [steps]
    assert fast.drain("done", WAIT_S)
    assert slow.drain("done", WAIT_S)
    assert set(asked[FAST]) == {T}
    assert (asked[SLOW][0], asked[SLOW][19]) == (T, T // 4)


def test_a_sampler_that_dies_with_a_permit_holds_up_nobody(closing: ExitStack, connect: Connect) -> None:
    learner = start(closing, paced())
    alive = connect(learner, FAST)  # alone, so both places of the first batch are its
    dying = connect(learner, SLOW)
    for sequence in range(2):
        assert deliver(learner, alive, FAST, sequence) is not None, alive.wait_reason
    assert dying.acquire(acting_version=lambda: learner.version.number, timeout_s=WAIT_S) is not None
    dying.close()  # the connection is gone, as when the process is killed; its fragment never comes
    for sequence in range(2, 8):
        assert deliver(learner, alive, FAST, sequence) is not None, alive.wait_reason
    assert alive.drain("done", WAIT_S)
