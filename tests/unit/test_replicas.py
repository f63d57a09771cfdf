"""When a group of learners is put together, and who is in it."""

from __future__ import annotations

import pytest

from headrace.sync.replicas import Replicas

A, B, C = "learner-0", "learner-1", "learner-2"


@pytest.fixture
def two() -> Replicas:
    """A group of two that has come together as generation 1."""
    replicas = Replicas([A, B], generation=0, deadline_s=30.0)
    for member in (A, B):
        replicas.join(member)
        replicas.ask(member, 0, now=0.0)
    assert replicas.is_due((), now=0.0)
    replicas.form(())
    return replicas


def test_the_first_group_waits_for_all_that_are_expected() -> None:
    replicas = Replicas([A, B], generation=7, deadline_s=30.0)
    replicas.join(A)
    replicas.ask(A, 0, now=100.0)
    assert not replicas.is_due((), now=129.9)
    replicas.join(B)
    assert not replicas.is_due((), now=129.9)
    replicas.ask(B, 0, now=110.0)
    assert replicas.is_due((), now=110.0)
    assert replicas.form(()) == (A, B)
    assert replicas.generation == 8


def test_who_never_comes_is_waited_for_until_the_deadline() -> None:
    replicas = Replicas([A, B], generation=0, deadline_s=30.0)
    replicas.join(A)
    replicas.ask(A, 0, now=100.0)
    assert replicas.is_due((), now=130.0)
    assert replicas.form(()) == (A,)


def test_a_newcomer_waits_for_the_close_of_the_round_and_comes_last(two: Replicas) -> None:
    two.join(C)
    two.ask(C, 0, now=1.0)
    assert not two.is_due({A, B}, now=1.0), "nobody is in trouble"
    assert two.is_changing()
    assert two.form({A, B}) == (A, B, C)
    assert two.generation == 2


def test_a_group_stays_as_it_is_while_nobody_comes_or_goes(two: Replicas) -> None:
    assert not two.is_changing()
    assert not two.is_due({A, B}, now=1e9)


def test_a_broken_group_comes_together_once_all_that_are_left_wait(two: Replicas) -> None:
    two.leave(B, now=5.0)
    two.join(B)  # started again
    two.ask(A, 1, now=5.0)
    assert not two.is_due((), now=5.0), "the new process has not asked"
    two.ask(B, 0, now=6.0)
    assert two.is_due((), now=6.0)
    assert two.form(()) == (A, B)
    assert two.generation == 2


def test_those_who_have_finished_their_part_wait_too(two: Replicas) -> None:
    two.ask(B, 1, now=5.0)
    assert not two.is_due((), now=5.0)
    assert two.is_due({A}, now=5.0)
    assert two.form({A}) == (A, B)


def test_without_its_first_member_a_group_can_not_go_on(two: Replicas) -> None:
    two.leave(A, now=5.0)
    assert two.is_due({B}, now=5.0)
    assert two.form({B}) == (B,)


def test_without_another_member_a_finished_round_counts(two: Replicas) -> None:
    two.leave(B, now=5.0)
    assert not two.is_due({A}, now=5.0)
    assert two.is_changing()
    assert two.form({A}) == (A,)


def test_a_member_that_has_lost_its_group_breaks_it(two: Replicas) -> None:
    two.ask(B, 0, now=5.0)
    assert two.is_due({A}, now=5.0)


def test_a_word_about_an_earlier_group_breaks_nothing(two: Replicas) -> None:
    two.ask(A, 1, now=5.0)
    two.ask(B, 1, now=5.0)
    two.form(())
    two.ask(A, 1, now=6.0)
    assert not two.is_due({B}, now=6.0)


def test_who_hangs_is_left_behind_after_the_deadline(two: Replicas) -> None:
    two.ask(A, 1, now=5.0)
    assert not two.is_due((), now=34.9)
    assert two.is_due((), now=35.0)
    assert two.form(()) == (A,)
