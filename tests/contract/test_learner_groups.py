"""Groups over a real channel: who reduces gradients with whom, and what a group's work counts for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from joining import START, Member, Together, round_settings, together, values_of
from paramserving import PATIENCE_S, eventually

from headrace.sync.aggregation import FlatArray
from headrace.sync.contribution import REGROUP, Contribution, Group, GroupRequest, RoundResult
from headrace.sync.vectors import encode_vector

NEW = GroupRequest(0, "it has none")
EMPTY = np.zeros(0, np.float32)


def sha256_of(values: FlatArray) -> str:
    return hashlib.sha256(encode_vector(values, "float32")).hexdigest()


def connect(run: Together, *numbers: int) -> list[Member]:
    members = [run.connect(number, rendezvous=f"host-{number}:1") for number in numbers]
    for member in members:
        member.join()
    return members


def ask_all(members: list[Member], request: GroupRequest = NEW) -> list[RoundResult]:
    """All ask at the same time; the answers in their order."""
    with ThreadPoolExecutor(len(members)) as pool:
        asked = [pool.submit(member.client.exchange, request, timeout_s=PATIENCE_S) for member in members]
        answers = [one.result(PATIENCE_S) for one in asked]
    assert all(answer is not None for answer in answers)
    return [answer for answer in answers if answer is not None]


def groups_of(answers: list[RoundResult]) -> list[Group]:
    assert [answer.outcome for answer in answers] == [REGROUP] * len(answers)
    groups = [answer.group for answer in answers]
    assert all(group is not None for group in groups)
    return [group for group in groups if group is not None]


def works(member: Member, values: FlatArray, *, first: bool, num_samples: int = 1) -> Contribution:
    """What a member of a group brings: the first one its values, the others that they have the same."""
    kind, vector = ("values", values) if first else ("none", EMPTY)
    return member.contribution(vector, kind=kind, num_samples=num_samples, values_sha256=sha256_of(values))


def bring_all(run: Together, members: list[Member], contributions: list[Contribution]) -> list[RoundResult]:
    waiting = [run.begin(*pair) for pair in zip(members[:-1], contributions[:-1], strict=True)]
    last = members[-1].bring(contributions[-1])
    return [*(one.result(PATIENCE_S) for one in waiting), last]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Together]:
    with together(round_settings(tmp_path, mode="all_reduce", exchange="auto")) as made:
        yield made


def test_all_that_are_expected_get_the_same_group(run: Together) -> None:
    members = connect(run, 0, 1)
    groups = groups_of(ask_all(members))
    assert [group.rank for group in groups] == [0, 1]
    assert {group.size for group in groups} == {2}
    assert {group.rendezvous for group in groups} == {"host-0:1"}
    assert len({group.generation for group in groups}) == 1


def test_the_first_brings_the_values_and_nobody_is_sent_what_it_holds(run: Together) -> None:
    members = connect(run, 0, 1)
    ask_all(members)
    values = START * 2
    answers = bring_all(
        run, members, [works(members[0], values, first=True), works(members[1], values, first=False)]
    )
    assert [answer.outcome for answer in answers] == ["applied"] * 2
    assert np.array_equal(values_of(run.newest()), values)
    assert [answer.values for answer in answers] == [None, None]
    assert all(answer.state is not None for answer in answers), "running moments are merged at the server"


def test_a_member_that_holds_something_else_is_sent_the_first_ones_values(run: Together) -> None:
    members = connect(run, 0, 1)
    ask_all(members)
    drifted = works(members[1], START * 3, first=False)
    _, answer = bring_all(run, members, [works(members[0], START * 2, first=True), drifted])
    assert answer.values is not None
    assert np.array_equal(answer.values, START * 2)


def test_what_one_member_spoils_is_refused_to_all(run: Together) -> None:
    members = connect(run, 0, 1)
    ask_all(members)
    poisoned = START * np.nan
    answers = bring_all(
        run, members, [works(members[0], poisoned, first=True), works(members[1], poisoned, first=False)]
    )
    assert [answer.outcome for answer in answers] == ["invalid"] * 2
    assert np.array_equal(values_of(run.newest()), START), "the version stays good"


def test_without_its_first_member_a_group_does_its_work_again(run: Together) -> None:
    members = connect(run, 0, 1)
    before = groups_of(ask_all(members))[1]
    waiting = run.begin(members[1], works(members[1], START * 2, first=False))
    members[0].client.close()
    answer = waiting.result(PATIENCE_S)
    assert answer.outcome == REGROUP
    assert answer.group is not None
    assert (answer.group.rank, answer.group.size, answer.group.rendezvous) == (0, 1, "host-1:1")
    assert answer.group.generation > before.generation
    assert np.array_equal(values_of(run.newest()), START), "nothing of it was applied"


def test_a_broken_group_comes_together_anew(run: Together) -> None:
    members = connect(run, 0, 1)
    before = groups_of(ask_all(members))[0]
    again = groups_of(ask_all(members, GroupRequest(before.generation, "connection reset")))
    assert [group.rank for group in again] == [0, 1]
    assert {group.generation for group in again} == {before.generation + 1}


def test_a_newcomer_enters_when_the_round_has_closed(run: Together) -> None:
    members = connect(run, 0, 1)
    ask_all(members)
    (newcomer,) = connect(run, 2)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(newcomer.client.exchange, NEW, timeout_s=PATIENCE_S)
        gathering = run.server.gathering
        assert gathering is not None
        assert gathering._groups is not None
        group = gathering._groups._replicas[0]
        eventually(group.is_changing, "the newcomer has asked")
        values = START * 2
        answers = bring_all(
            run, members, [works(members[0], values, first=True), works(members[1], values, first=False)]
        )
        entered = asked.result(PATIENCE_S)
    assert entered is not None
    groups_now = [answer.group for answer in (*answers, entered)]
    assert [group.rank for group in groups_now if group] == [0, 1, 2]
    assert {group.size for group in groups_now if group} == {3}
    assert entered.values is not None
    assert np.array_equal(entered.values, values), "it goes on from the newest version"


def test_a_group_counts_for_the_samples_of_all_its_members(tmp_path: Path) -> None:
    settings = round_settings(tmp_path, learners=4, group_size=2)
    with together(settings) as run:
        members = connect(run, 0, 1, 2, 3)
        ask_all(members)
        first, second = START * 2, START * 4
        contributions = [
            works(members[0], first, first=True, num_samples=100),
            works(members[1], first, first=False, num_samples=200),
            works(members[2], second, first=True, num_samples=50),
            works(members[3], second, first=False, num_samples=50),
        ]
        answers = bring_all(run, members, contributions)
        assert [answer.outcome for answer in answers] == ["applied"] * 4
        expected = 0.75 * first + 0.25 * second
        np.testing.assert_allclose(values_of(run.newest()), expected, rtol=1e-5)
