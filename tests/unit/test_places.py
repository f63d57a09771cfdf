"""Samplers' places: numbers, leases, learners."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.errors import ExhaustedError
from headrace.types import SamplerIdentity
from services.paramserver.places import Place, Places


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Registry:
    """Gives out identities that nobody had."""

    def __init__(self) -> None:
        self.given: list[SamplerIdentity] = []

    def __call__(self, index: int) -> SamplerIdentity:
        name = f"sampler-{index}"
        identity = SamplerIdentity(name, sum(other.sampler_id == name for other in self.given))
        self.given.append(identity)
        return identity


def make(num_learners: int = 1, most: int = 8) -> tuple[Places, Clock, Registry]:
    clock = Clock()
    return Places(num_learners=num_learners, most=most, clock=clock, lease_s=30.0), clock, Registry()


def test_the_least_free_number_is_given() -> None:
    places, _, claim = make()
    taken = [places.join(f"pod-{i}", "a", claim) for i in range(3)]
    places.leave(taken[1].identity)
    assert [place.index for place in taken] == [0, 1, 2]
    assert places.join("pod-9", "a", claim).identity == SamplerIdentity("sampler-1", 1)


def test_asking_again_gives_the_same_place_and_a_new_start_of_the_pod_the_next_incarnation() -> None:
    places, _, claim = make()
    first = places.join("pod", "a", claim)
    assert places.join("pod", "a", claim) == first
    assert places.join("pod", "b", claim).identity == SamplerIdentity("sampler-0", 1)
    assert places.renew(first) is None


def test_a_place_lasts_as_long_as_it_is_heard_of() -> None:
    places, clock, claim = make()
    place = places.join("pod", "a", claim)
    clock.now = 29.0
    assert places.renew(place) == 0
    clock.now = 58.0
    assert [taken.name for taken in places.taken()] == ["pod"]
    clock.now = 60.0
    places.expire()
    assert places.taken() == []


def test_one_who_was_given_up_comes_back_only_while_the_number_is_free() -> None:
    places, clock, claim = make()
    first = places.join("pod", "a", claim)
    clock.now = 31.0
    assert places.renew(first) == 0
    clock.now = 62.0
    places.join("other", "a", claim)
    assert places.renew(first) is None


def test_a_full_run_lets_nobody_in() -> None:
    places, _, claim = make(most=1)
    places.join("pod", "a", claim)
    with pytest.raises(ExhaustedError, match=r"sampler\.max_count"):
        places.join("other", "a", claim)


def test_the_learner_with_the_fewest_gets_the_next_and_one_changes_over_for_two_too_many() -> None:
    places, _, claim = make(num_learners=2)
    taken = [places.join(f"pod-{i}", "a", claim) for i in range(4)]
    assert [place.learner for place in taken] == [0, 1, 0, 1]
    places.leave(taken[1].identity)
    assert places.renew(taken[0]) == 0  # 2 and 1: nothing is gained by a change
    places.leave(taken[3].identity)
    assert places.renew(taken[0]) == 1
    assert places.renew(taken[2]) == 0  # only one of them goes


class Coming(RuleBasedStateMachine):
    """Any order of joins, renewals, departures and silences."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.clock, self.claim = make(num_learners=3, most=4)
        self.known: list[Place] = []

    @rule(pod=st.integers(0, 5), start=st.sampled_from("ab"))
    def join(self, pod: int, start: str) -> None:
        try:
            self.known.append(self.places.join(f"pod-{pod}", start, self.claim))
        except ExhaustedError:
            assert len(self.places.taken()) == 4

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        if self.known:
            self.places.renew(data.draw(st.sampled_from(self.known)))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.known:
            self.places.leave(data.draw(st.sampled_from(self.known)).identity)

    @rule(seconds=st.floats(0.0, 20.0))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def no_two_are_the_same(self) -> None:
        taken = self.places.taken()
        assert len(taken) <= 4
        for value in ("index", "identity", "name"):
            assert len({getattr(place, value) for place in taken}) == len(taken)

    @invariant()
    def identities_are_given_once(self) -> None:
        assert len(set(self.claim.given)) == len(self.claim.given)


TestComing = Coming.TestCase


@settings(max_examples=50)
@given(pods=st.integers(1, 12), learners=st.integers(1, 4), leaving=st.sets(st.integers(0, 11)))
def test_whoever_leaves_the_rest_are_spread_evenly_in_the_end(
    pods: int, learners: int, leaving: set[int]
) -> None:
    places, _, claim = make(num_learners=learners, most=12)
    taken = [places.join(f"pod-{i}", "a", claim) for i in range(pods)]
    for index in leaving & set(range(pods)):
        places.leave(taken[index].identity)
    for _ in range(pods):
        for place in places.taken():
            places.renew(place)
    loads = [sum(place.learner == learner for place in places.taken()) for learner in range(learners)]
    assert max(loads) - min(loads) <= 1
