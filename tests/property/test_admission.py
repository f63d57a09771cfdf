"""Pacing keeps the bound on the policy lag by construction, wastes nothing and never stands still."""

from __future__ import annotations

import random
from bisect import insort

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.flow.admission import Admission
from headrace.flow.messages import Permit

FIRST_VERSION = 7


class PacedRun:
    """Samplers that start and deliver whenever the dice say, die and come back; parameters come late.

    A fragment is acted by any version from the permit's ``min_version`` to the newest published one,
    never older than the same sampler's last: the older it is, the harder for the bound. Permits may be
    used in any order. What must hold is checked after every step.
    """

    def __init__(self, size: int, max_lag: int, streams: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.size, self.max_lag = size, max_lag
        self.admission = Admission(batch_fragments=size, max_lag=max_lag, version=FIRST_VERSION)
        self.permits: dict[int, list[Permit]] = {}
        self.acted: dict[int, int] = {}
        self.weights: dict[int, int] = {}
        self.held: list[int] = []
        self.taken = self.joined = 0
        self.indices: set[int] = set()
        for _ in range(streams):
            self.join()

    def step(self) -> None:
        steps = [self.issue, self.deliver, self.take, self.publish, self.die_and_come_back]
        self.rng.choices(steps, weights=[4, 6, 3, 3, 0.3])[0]()
        self.check()

    def join(self) -> None:
        stream, self.joined = self.joined, self.joined + 1
        self.admission.join(stream, ahead=self.rng.randint(1, 4))
        self.permits[stream], self.acted[stream] = [], 0
        self.weights[stream] = self.rng.choice([1, 3, 30])  # how fast it is

    def die_and_come_back(self) -> None:
        stream = self.rng.choice(sorted(self.permits))
        self.admission.leave(stream)
        del self.permits[stream]
        self.join()

    def issue(self) -> None:
        candidates = self.admission.by_need(self.permits)
        if candidates and self.admission.is_open():
            permit = self.admission.issue(candidates[0])
            assert permit.index not in self.indices
            assert permit.min_version <= self.admission.current, "a version that nobody can have"
            self.indices.add(permit.index)
            self.permits[candidates[0]].append(permit)

    def deliver(self) -> None:
        holders = [stream for stream, permits in self.permits.items() if permits]
        if not holders:
            return
        stream = self.rng.choices(holders, weights=[self.weights[one] for one in holders])[0]
        permit = self.permits[stream].pop(self.rng.randrange(len(self.permits[stream])))
        version = max(permit.min_version, self.acted[stream], FIRST_VERSION)
        if self.rng.random() < 0.3:
            version = self.rng.randint(version, max(version, self.admission.current))
        self.acted[stream] = version
        assert self.admission.arrived(stream, version)
        insort(self.held, version)

    def take(self) -> None:
        if len(self.held) < self.size or self.admission.due():
            return
        batch, self.held = self.held[: self.size], self.held[self.size :]
        for version in batch:
            assert self.admission.next_update - version <= self.max_lag, "older than the bound"
        self.admission.take(batch)
        self.taken += 1

    def publish(self) -> None:
        if self.taken:
            self.taken -= 1
            self.admission.advance(self.admission.current + 1, consumed=True)

    def check(self) -> None:
        admission = self.admission
        room = self.size * max(0, self.max_lag + 1 - self.taken)
        assert admission.num_held + admission.num_outstanding <= room
        assert admission.num_held == len(self.held)
        if not self.taken and not admission.num_outstanding:
            # Nothing is under way: a batch can be taken, or another fragment can be started.
            assert not admission.due() if len(self.held) >= self.size else admission.is_open()


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 4), st.integers(0, 4), st.integers(1, 5), st.integers(0, 2**32))
def test_the_bound_holds_by_construction_and_nothing_stands_still(
    size: int, max_lag: int, streams: int, seed: int
) -> None:
    run = PacedRun(size, max_lag, streams, seed)
    for _ in range(300):
        run.step()
    version = run.admission.current
    for _ in range(2000):
        run.step()
        if run.admission.current > version + 1:
            return
    raise AssertionError("no update in 2000 steps")


def make(size: int = 2, max_lag: int = 1, streams: int = 1, ahead: int = 100) -> Admission:
    admission = Admission(batch_fragments=size, max_lag=max_lag, version=0)
    for stream in range(streams):
        admission.join(stream, ahead=ahead)
    return admission


def issue_all(admission: Admission, stream: int = 0) -> list[Permit]:
    permits = []
    while admission.is_open():
        permits.append(admission.issue(stream))
    return permits


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_permits_say_the_place_in_the_order_of_training_and_the_version_it_needs(max_lag: int) -> None:
    permits = issue_all(make(size=2, max_lag=max_lag))
    assert [permit.index for permit in permits] == list(range(2 * (max_lag + 1)))
    assert [permit.min_version for permit in permits] == [
        max(0, i // 2 - max_lag) for i in range(len(permits))
    ]


def test_lockstep_opens_again_only_with_the_next_version_and_asks_for_it() -> None:
    admission = make(size=1, max_lag=0)
    admission.issue(0)
    admission.arrived(0, 0)
    admission.take([0])
    assert not admission.is_open()
    admission.advance(1, consumed=True)
    assert admission.issue(0).min_version == 1


def test_what_a_dead_stream_was_to_make_others_make_first() -> None:
    admission = make(size=1, max_lag=2, streams=2)
    for _ in range(3):
        admission.issue(0)
    admission.join(2, ahead=1)
    admission.leave(0)
    assert [admission.issue(2).min_version, admission.issue(2).min_version] == [0, 0]
    assert admission.is_open()


def test_the_next_update_waits_for_what_would_be_too_old_after_it() -> None:
    admission = make(size=1, max_lag=0, streams=2)
    slow = admission.issue(0)
    assert admission.due() == [(0, slow)]
    admission.arrived(0, 0)
    assert admission.due() == []


def test_two_that_share_a_deadline_are_waited_for_one_update_earlier() -> None:
    """At update 2 both outstanding ones have their deadline at 3, where only one of them fits."""
    admission = make(size=1, max_lag=3, streams=3)
    first, _ = admission.issue(0), [admission.issue(1) for _ in range(2)]
    second = admission.issue(2)
    for update in range(2):
        admission.arrived(1, 0)
        assert admission.due() == []
        admission.take([0])
        admission.advance(update + 1, consumed=True)
    admission.issue(1)
    assert {permit for _, permit in admission.due()} == {first, second}


def test_who_has_shown_a_newer_version_is_not_waited_for() -> None:
    admission = make(size=1, max_lag=1, streams=2)
    admission.join(9, ahead=1, started=1, seen_version=0)
    assert admission.due() == []
    admission.advance(1, consumed=False)
    assert [stream for stream, _ in admission.due()] == [9]
    admission.leave(9)
    admission.join(9, ahead=1, started=1, seen_version=1)
    assert admission.due() == []


def test_a_lapsed_permit_is_free_for_others_and_its_stream_gets_none_until_it_delivers() -> None:
    admission = make(size=1, max_lag=0, streams=2)
    permit = admission.issue(0)
    assert not admission.is_open()
    admission.lapse(0, permit)
    assert admission.is_open()
    assert admission.by_need([0, 1]) == [1]
    assert not admission.arrived(0, 0), "nobody was waiting for it any more"
    assert admission.by_need([0, 1]) == [0, 1]


def test_the_fewest_unused_permits_come_first_and_equals_take_turns() -> None:
    admission = make(size=6, max_lag=0, streams=3)
    given = []
    for _ in range(6):
        given.append(admission.by_need(range(3))[0])
        admission.issue(given[-1])
    assert given == [0, 1, 2, 0, 1, 2]


def test_started_fragments_of_a_stream_count_before_new_permits() -> None:
    admission = make(size=2, max_lag=0, streams=0)
    admission.join(0, ahead=2, started=1)
    assert len(issue_all(admission)) == 1


def test_a_number_that_jumps_makes_the_held_ones_older_but_opens_no_hole() -> None:
    admission = make(size=1, max_lag=1)
    issue_all(admission)
    admission.arrived(0, 0)
    admission.advance(5, consumed=False)
    assert admission.next_update == 5
    admission.dropped(0)
    assert admission.is_open()


def test_a_huge_bound_costs_nothing() -> None:
    admission = make(size=1, max_lag=10**9)
    assert admission.issue(0).min_version == 0


def test_versions_never_fall() -> None:
    admission = make()
    admission.advance(3, consumed=False)
    with pytest.raises(ValueError, match="never fall"):
        admission.advance(2, consumed=False)
