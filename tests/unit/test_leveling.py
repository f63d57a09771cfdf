"""How long each sampler's fragments are to be, by hand-made speeds."""

from __future__ import annotations

import math

import pytest

from headrace.flow.leveling import Leveling, Quota

T = 100


def make(streams: int = 4, *, min_share: float = 0.1) -> Leveling:
    leveling = Leveling(fragment_steps=T, min_share=min_share)
    for stream in range(streams):
        leveling.join(stream)
    return leveling


def observe(leveling: Leveling, speeds: dict[int, float], fragments: int) -> dict[int, Quota]:
    """``fragments`` fragments of each stream at these speeds; the last change of each."""
    changes = {}
    for _ in range(fragments):
        for stream, speed in speeds.items():
            if (change := leveling.observe(stream, speed)) is not None:
                changes[stream] = change
    return changes


def quotas(leveling: Leveling, streams: int = 4) -> list[int]:
    return [leveling.steps(stream) for stream in range(streams)]


def test_one_that_is_five_times_slower_makes_a_fifth_and_the_others_all() -> None:
    leveling = make()
    changes = observe(leveling, {0: 200.0, 1: 200.0, 2: 200.0, 3: 40.0}, 3)
    assert changes == {3: Quota(20, 40.0, 200.0)}
    assert quotas(leveling) == [T, T, T, 20]


def test_nothing_changes_before_a_few_fragments_agree() -> None:
    leveling = make()
    assert observe(leveling, {0: 200.0, 3: 40.0}, 2) == {}
    assert quotas(leveling) == [T] * 4


def test_one_long_pause_changes_nothing() -> None:
    leveling = make(2)
    observe(leveling, {0: 200.0, 1: 200.0}, 5)
    assert leveling.observe(1, 1.0) is None
    assert observe(leveling, {0: 200.0, 1: 200.0}, 20) == {}


def test_what_recovers_gets_whole_fragments_again() -> None:
    leveling = make()
    observe(leveling, {0: 200.0, 1: 200.0, 2: 200.0, 3: 40.0}, 5)
    changes = observe(leveling, {0: 200.0, 1: 200.0, 2: 200.0, 3: 200.0}, 3)
    assert changes == {3: Quota(T, 200.0, 200.0)}


def test_no_quota_falls_below_the_least_share() -> None:
    leveling = make(min_share=0.25)
    observe(leveling, {0: 200.0, 1: 200.0, 2: 200.0, 3: 1.0}, 5)
    assert leveling.steps(3) == 25


@pytest.mark.parametrize("min_share", [1e-9, 0.001])
def test_every_quota_is_one_step_at_least(min_share: float) -> None:
    leveling = make(min_share=min_share)
    observe(leveling, {0: 200.0, 1: 200.0, 2: 200.0, 3: 1e-6}, 5)
    assert leveling.steps(3) == 1


def test_one_that_is_very_fast_shortens_nobodys_fragments() -> None:
    leveling = make()
    assert observe(leveling, {0: 200.0, 1: 200.0, 2: 200.0, 3: 5000.0}, 20) == {}


def test_of_two_the_faster_one_is_the_measure() -> None:
    leveling = make(2)
    observe(leveling, {0: 40.0, 1: 200.0}, 5)
    assert quotas(leveling, 2) == [20, T]


def test_alone_a_sampler_makes_whole_fragments_whatever_its_speed() -> None:
    leveling = make(1)
    assert observe(leveling, {0: 200.0}, 10) == observe(leveling, {0: 2.0}, 10) == {}


def test_one_that_has_left_is_no_longer_compared_with() -> None:
    leveling = make(2)
    observe(leveling, {0: 40.0, 1: 200.0}, 5)
    leveling.leave(1)
    observe(leveling, {0: 40.0}, 3)
    assert (leveling.steps(0), leveling.pace) == (T, 40.0)


def test_a_little_slower_is_levelled_only_once_many_fragments_agree() -> None:
    leveling = make()
    speeds = {0: 200.0, 1: 200.0, 2: 200.0, 3: 180.0}
    assert observe(leveling, speeds, 8) == {}
    assert observe(leveling, speeds, 1) == {3: Quota(90, 180.0, 200.0)}


def test_costs_besides_steps_are_in_the_quota_that_it_settles_at() -> None:
    # A fragment of q steps of stream 1 takes 0.1 + 0.02 q seconds; 0.5 s is what stream 0 takes.
    leveling = make(2)
    for _ in range(60):
        leveling.observe(0, T / 0.5)
        steps = leveling.steps(1)
        leveling.observe(1, steps / (0.1 + 0.02 * steps))
    assert 0.1 + 0.02 * leveling.steps(1) == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_speed_is_passed_over(speed: float) -> None:
    leveling = make(2)
    observe(leveling, {0: 200.0, 1: 200.0}, 3)
    assert observe(leveling, {1: speed}, 20) == {}
    assert leveling.pace == 200.0
