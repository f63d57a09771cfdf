"""When a round closes, whose contributions are in it, and for whom it waits."""

from __future__ import annotations

import math

import pytest

from headrace.sync.rounds import COMPLETE, DEADLINE, ENDED, WINDOW, Closing, RoundPolicy, Rounds


def make_rounds(*members: str, policy: RoundPolicy | None = None, expected: tuple[str, ...] = ()) -> Rounds:
    rounds = Rounds(policy or RoundPolicy(), expected=expected)
    for member in members:
        rounds.join(member)
    return rounds


def test_without_a_quorum_a_round_closes_with_the_last_of_all_members() -> None:
    rounds = make_rounds("a", "b", "c")
    rounds.offer("b", 1.0)
    rounds.offer("c", 2.0)
    assert rounds.close(1e9) is None
    rounds.offer("a", 5.0)
    assert rounds.close(5.0) == Closing(("a", "b", "c"), COMPLETE, 4.0)
    assert not rounds.is_open


def test_a_quorum_closes_a_round_exactly_when_it_is_reached() -> None:
    rounds = make_rounds("a", "b", "c", policy=RoundPolicy(quorum=2))
    rounds.offer("c", 0.0)
    assert rounds.close(0.0) is None
    rounds.offer("a", 0.0)
    assert rounds.close(0.0) == Closing(("a", "c"), COMPLETE, 0.0)


def test_a_quorum_of_more_than_are_there_is_all_who_are_there() -> None:
    rounds = make_rounds("a", "b", policy=RoundPolicy(quorum=3))
    rounds.offer("a", 0.0)
    assert rounds.close(0.0) is None
    rounds.offer("b", 0.0)
    assert rounds.close(0.0) is not None


@pytest.mark.parametrize(
    ("policy", "reason"),
    [(RoundPolicy(window_s=2.0), WINDOW), (RoundPolicy(deadline_s=2.0), DEADLINE)],
    ids=["window", "deadline"],
)
def test_time_closes_a_round_exactly_when_it_is_over_since_the_first_contribution(
    policy: RoundPolicy, reason: str
) -> None:
    rounds = make_rounds("a", "b", policy=policy)
    assert rounds.alarm() == math.inf
    rounds.offer("a", 10.0)
    assert rounds.alarm() == 12.0
    assert rounds.close(math.nextafter(12.0, 0.0)) is None
    assert rounds.close(12.0) == Closing(("a",), reason, 2.0)
    assert rounds.alarm() == math.inf


def test_the_time_of_a_round_begins_anew_with_each_round() -> None:
    rounds = make_rounds("a", "b", policy=RoundPolicy(window_s=2.0))
    rounds.offer("a", 0.0)
    assert rounds.close(2.0) is not None
    rounds.offer("b", 3.0)
    assert rounds.close(4.9) is None
    assert rounds.close(5.0) == Closing(("b",), WINDOW, 2.0)


def test_a_member_that_leaves_takes_its_contribution_with_it() -> None:
    rounds = make_rounds("a", "b")
    rounds.offer("a", 0.0)
    assert rounds.leave("a") is True
    assert not rounds.is_open
    rounds.offer("b", 7.0)
    assert rounds.close(7.0) == Closing(("b",), COMPLETE, 0.0)


def test_a_round_may_close_because_somebody_has_left() -> None:
    rounds = make_rounds("a", "b")
    rounds.offer("a", 0.0)
    assert rounds.close(1.0) is None
    assert rounds.leave("b") is False
    assert rounds.close(1.0) == Closing(("a",), COMPLETE, 1.0)


def test_nobody_contributes_twice_or_from_outside() -> None:
    rounds = make_rounds("a", "b")
    rounds.offer("a", 0.0)
    with pytest.raises(ValueError, match="a can't contribute"):
        rounds.offer("a", 0.0)
    with pytest.raises(ValueError, match="nobody can't contribute"):
        rounds.offer("nobody", 0.0)


def test_a_member_that_is_expected_is_waited_for_until_a_deadline_has_closed_a_round() -> None:
    rounds = make_rounds("a", policy=RoundPolicy(deadline_s=30.0), expected=("a", "b"))
    rounds.offer("a", 0.0)
    assert rounds.close(29.0) is None
    assert rounds.close(30.0) == Closing(("a",), DEADLINE, 30.0)
    rounds.offer("a", 31.0)
    assert rounds.close(31.0) == Closing(("a",), COMPLETE, 0.0)


def test_who_misses_a_deadline_is_not_waited_for_before_it_has_contributed_again() -> None:
    rounds = make_rounds("a", "b", policy=RoundPolicy(deadline_s=30.0))
    rounds.offer("a", 0.0)
    assert rounds.close(30.0) == Closing(("a",), DEADLINE, 30.0)
    rounds.offer("a", 31.0)
    assert rounds.close(31.0) == Closing(("a",), COMPLETE, 0.0)
    rounds.offer("b", 32.0)
    assert rounds.close(32.0) is None
    rounds.offer("a", 33.0)
    assert rounds.close(33.0) == Closing(("a", "b"), COMPLETE, 1.0)
    rounds.offer("a", 34.0)
    assert rounds.close(34.0) is None


def test_a_window_does_not_end_the_wait_for_who_is_expected() -> None:
    rounds = make_rounds("a", policy=RoundPolicy(window_s=1.0, deadline_s=30.0), expected=("a", "b"))
    for opened_at in (0.0, 10.0):
        rounds.offer("a", opened_at)
        assert rounds.close(opened_at) is None
        assert rounds.close(opened_at + 1.0) == Closing(("a",), WINDOW, 1.0)


def test_a_member_that_was_seen_and_has_left_is_not_waited_for() -> None:
    rounds = make_rounds("a", "b", expected=("a", "b"))
    rounds.leave("b")
    rounds.offer("a", 0.0)
    assert rounds.close(0.0) is not None


def test_a_party_counts_as_one_and_enters_whole() -> None:
    rounds = Rounds(RoundPolicy(quorum=1))
    for member in ("a", "b"):
        rounds.join(member, party="group")
    rounds.join("c")
    rounds.offer("a", 0.0)
    assert rounds.close(0.0) is None
    rounds.offer("c", 1.0)
    assert rounds.close(1.0) == Closing(("c",), COMPLETE, 1.0)
    assert rounds.is_open
    rounds.offer("b", 2.0)
    assert rounds.close(2.0) == Closing(("a", "b"), COMPLETE, 1.0)


def test_time_does_not_close_a_round_that_only_a_part_of_a_party_is_in() -> None:
    rounds = Rounds(RoundPolicy(window_s=1.0, deadline_s=2.0))
    for member in ("a", "b"):
        rounds.join(member, party="group")
    rounds.offer("a", 0.0)
    assert rounds.close(100.0) is None
    rounds.leave("b")
    assert rounds.close(100.0) is not None


def test_the_end_takes_what_is_there_and_nothing_if_nothing_is() -> None:
    rounds = make_rounds("a", "b")
    assert rounds.end(0.0) is None
    rounds.offer("b", 1.0)
    assert rounds.end(3.0) == Closing(("b",), ENDED, 2.0)
    assert rounds.end(4.0) is None
