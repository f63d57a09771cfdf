"""The ledger balances for every history, says what is wrong if it doesn't, and blames the right one."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.flow.ledger import (
    MISSING,
    ColdAccount,
    SamplerAccount,
    SamplerState,
    build_ledger,
    build_replay_ledger,
)
from headrace.types import LearnerAccount, SamplerIdentity

SAMPLER = SamplerIdentity("sampler-0", 0)
LATER = SamplerIdentity("sampler-0", 1)

fragments = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from(["trained", "stale", "non_finite"])), max_size=20
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[SamplerAccount, LearnerAccount]:
    """What both sides say at some moment of a life: sealed fragments, some of them settled."""
    made = draw(fragments)
    published = draw(st.integers(0, len(made)))
    heard = draw(st.integers(0, published))
    discarded = draw(st.dictionaries(st.sampled_from(["fault_hang", "non_finite"]), st.integers(1, 9)))
    open_now = draw(st.integers(0, 50))
    sealed = sum(size for size, _ in made)
    fates: Counter[str] = Counter()
    for size, fate in made[:published]:
        fates[fate] += size
    account = SamplerAccount(
        SAMPLER,
        produced=sealed + sum(discarded.values()) + open_now,
        discarded=discarded,
        sealed=sealed,
        open=open_now,
        last_sequence=len(made) - 1,
        settled_through=heard - 1,
        settled=sum(size for size, _ in made[:heard]),
        state=draw(st.sampled_from(["running", "drained"])),
    )
    trained = fates.pop("trained", 0)
    return account, LearnerAccount(SAMPLER, published - 1, trained, dict(fates))


@given(histories(), st.booleans(), st.booleans())
def test_every_history_balances(
    history: tuple[SamplerAccount, LearnerAccount], run_over: bool, superseded: bool
) -> None:
    made, settled = history
    later = [SamplerAccount(LATER)] if superseded else []
    ledger = build_ledger([made, *later], [settled], run_over=run_over)
    assert ledger.balanced, ledger.problems
    row = ledger.rows[0]
    assert row.produced == made.produced
    assert row.produced == (
        row.trained + row.stored + sum(row.dropped.values()) + row.in_flight + sum(row.lost.values())
    )
    assert not run_over or row.in_flight == 0
    assert set(row.lost) <= {"sampler_killed"}


@given(histories(), st.integers(0, 100), st.booleans(), st.booleans())
def test_a_report_that_is_older_than_what_is_settled_balances_unless_it_was_the_last_word(
    history: tuple[SamplerAccount, LearnerAccount], missing: int, gone: bool, run_over: bool
) -> None:
    truth, settled = history
    behind = min(missing, truth.sealed)
    older = replace(
        truth,
        sealed=truth.sealed - behind,
        produced=truth.produced - behind,
        settled_through=-1,
        settled=0,
    )
    done = settled.trained + sum(settled.dropped.values())
    lost_sight = {SAMPLER} if gone else set()
    ledger = build_ledger([older], [settled], run_over=run_over, gone=lost_sight, reported={SAMPLER})
    assert ledger.balanced == (older.state == "running" or done <= older.sealed), ledger.problems
    assert ledger.rows[0].trained == settled.trained
    if older.state == "running":
        assert ledger.rows[0].produced >= max(older.produced, done)


@given(histories(), st.integers(1, 20))
def test_what_the_sampler_forgot_and_no_version_accounts_for_was_not_saved(
    history: tuple[SamplerAccount, LearnerAccount], vanished: int
) -> None:
    made, settled = history
    done = settled.trained + sum(settled.dropped.values())
    made = replace(
        made,
        produced=made.produced + vanished,
        sealed=made.sealed + vanished,
        last_sequence=made.last_sequence + 1,
        settled_through=settled.settled_through + 1,
        settled=done + vanished,
    )
    ledger = build_ledger([made], [settled], run_over=True)
    assert ledger.balanced, ledger.problems
    assert ledger.rows[0].lost["not_saved"] == vanished
    assert "learner_killed" not in ledger.rows[0].lost


@pytest.mark.parametrize(
    ("state", "run_over", "superseded", "expected"),
    [
        ("running", False, False, {"in_flight": 12, "lost": {}, "dropped": {}}),
        ("drained", False, False, {"in_flight": 12, "lost": {}, "dropped": {}}),
        # The open fragment of a dead one is gone; what it had sealed may be at the learner.
        ("running", False, True, {"in_flight": 10, "lost": {"sampler_killed": 2}, "dropped": {}}),
        ("running", True, False, {"in_flight": 0, "lost": {"sampler_killed": 12}, "dropped": {}}),
        ("drained", True, False, {"in_flight": 0, "lost": {}, "dropped": {"run_ended": 12}}),
    ],
)
def test_the_remainder_goes_where_it_belongs(
    state: SamplerState, run_over: bool, superseded: bool, expected: dict[str, object]
) -> None:
    made = SamplerAccount(SAMPLER, produced=20, sealed=18, open=2, last_sequence=3, state=state)
    settled = LearnerAccount(SAMPLER, 1, trained=8)
    later = [SamplerAccount(LATER, state="drained")] if superseded else []
    row = build_ledger([made, *later], [settled], run_over=run_over).rows[0]
    assert {"in_flight": row.in_flight, "lost": row.lost, "dropped": row.dropped} == expected


def test_what_a_new_learner_finds_missing_is_lost_with_the_old_one() -> None:
    made = SamplerAccount(SAMPLER, produced=30, sealed=30, last_sequence=2)
    settled = LearnerAccount(SAMPLER, 2, trained=20, dropped={MISSING: 10})
    row = build_ledger([made], [settled], run_over=True).rows[0]
    assert (row.lost, row.dropped, row.problems) == ({"learner_killed": 10}, {}, ())


@pytest.mark.parametrize(
    ("made", "settled", "problem"),
    [
        ({"produced": 11}, {}, "produced 11, but discarded 0 \\+ sealed 8 \\+ open 2"),
        ({}, {"trained": 9}, "9 transitions settled of 8 sealed: something was counted twice"),
        ({"open": -1, "produced": 7}, {}, "a count is negative"),
        ({}, {"trained": -3}, "a count is negative"),
    ],
)
def test_what_does_not_add_up_is_said_in_words(
    made: dict[str, int], settled: dict[str, int], problem: str
) -> None:
    sampler = replace(SamplerAccount(SAMPLER, produced=10, sealed=8, open=2, last_sequence=0), **made)
    ledger = build_ledger([sampler], [LearnerAccount(SAMPLER, 0, **settled)], run_over=False)
    assert not ledger.balanced
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError("; ".join(ledger.problems))


def test_a_sampler_that_left_no_account_is_no_balance() -> None:
    ledger = build_ledger([], [LearnerAccount(SAMPLER, 4, trained=100)], run_over=True)
    assert not ledger.balanced
    assert "account is missing" in ledger.problems[0]
    assert ledger.totals()["trained"] == 100


def test_a_sampler_that_the_learner_has_never_met_is_in_flight() -> None:
    ledger = build_ledger([SamplerAccount(SAMPLER, produced=7, open=7)], [], run_over=False)
    assert ledger.balanced
    assert ledger.totals()["in_flight"] == 7


def test_totals_are_the_summary_part_and_everything_is_json() -> None:
    ledger = build_ledger(
        [
            SamplerAccount(SAMPLER, produced=10, discarded={"fault_hang": 2}, sealed=8, last_sequence=1),
            SamplerAccount(LATER, produced=5, sealed=5, last_sequence=0, state="drained"),
        ],
        [LearnerAccount(SAMPLER, 0, trained=4), LearnerAccount(LATER, 0, dropped={"stale": 5})],
        run_over=True,
    )
    assert ledger.totals() == {
        "produced": 15,
        "trained": 4,
        "stored": 0,
        "evicted": 0,
        "dropped": {"fault_hang": 2, "stale": 5},
        "in_flight": 0,
        "lost": {"sampler_killed": 4},
        "sampled": 0,
        "balanced": True,
    }
    whole = json.loads(json.dumps(ledger.to_json()))
    assert [row["incarnation"] for row in whole["incarnations"]] == [0, 1]
    assert whole["problems"] == []


@given(data=st.data(), run_over=st.booleans(), drained=st.booleans(), later=st.booleans())
def test_replay_accounts_for_every_transition_in_every_state(
    data: st.DataObject, run_over: bool, drained: bool, later: bool
) -> None:
    def up_to(limit: int) -> int:
        return data.draw(st.integers(0, limit))

    produced = up_to(1000)
    sealed = up_to(produced)
    discarded = up_to(produced - sealed)
    received = up_to(sealed)
    evicted_unsunk = up_to(sealed - received)
    stored = up_to(received)
    evicted = up_to(received - stored)
    made = SamplerAccount(
        SAMPLER,
        produced=produced,
        discarded={"fault_hang": discarded},
        sealed=sealed,
        open=produced - sealed - discarded,
        evicted_unsunk=evicted_unsunk,
        state="drained" if drained else "running",
    )
    cold = ColdAccount(SAMPLER, received, stored, evicted, {"redis_lost": received - stored - evicted})
    ledger = build_replay_ledger(
        [made, *([SamplerAccount(LATER)] if later else [])], [cold], run_over=run_over
    )
    row = ledger.rows[0]
    assert ledger.balanced
    assert row.evicted == evicted + evicted_unsunk
    only_hot = sealed - received - evicted_unsunk
    alive = not (run_over or drained or later)
    assert row.stored == stored + (only_hot if alive else 0)
    assert sum(row.lost.values()) == cold.lost["redis_lost"] + (
        0 if alive or drained else only_hot + made.open
    )


def test_a_cold_tier_that_has_more_than_was_made_is_a_problem() -> None:
    made = SamplerAccount(SAMPLER, produced=5, sealed=5)
    assert not build_replay_ledger([made], [ColdAccount(SAMPLER, 6, 6)], run_over=False).balanced
    assert not build_replay_ledger([made], [ColdAccount(SAMPLER, 5, 4)], run_over=False).balanced
