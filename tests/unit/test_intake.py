"""The learner's door, promise by promise: who may open, what is taken, when it is settled."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from pipe_simulation import TRANSITIONS, UNIT_BYTES, Clock, make_config, make_fragment

from headrace.errors import (
    ConfigurationError,
    ExhaustedError,
    HandshakeError,
    InvalidDataError,
    UnavailableError,
)
from headrace.flow.messages import Closed, Grant, Permit, Refused, Settled, ToSampler
from headrace.types import LearnerAccount, PolicyVersion, SamplerIdentity
from services.learner.intake import Intake
from services.learner.stock import TakenBatch

A = SamplerIdentity("sampler-a", 0)
B = SamplerIdentity("sampler-b", 0)


def version(number: int) -> PolicyVersion:
    return PolicyVersion(1, number)


class Door:
    """An intake with a clock to turn and ears for everything it says."""

    def __init__(self, *, at: int = 0, accounts: tuple[LearnerAccount, ...] = (), **fields: Any) -> None:
        self.clock = Clock()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.heard: dict[int, list[ToSampler]] = {}
        self.intake = Intake(
            make_config(**{"sync__lag_control": "drop", **fields}),
            clock=self.clock,
            on_event=lambda kind, **details: self.events.append((kind, details)),
        )
        self._version = version(at)
        self.intake.restore(accounts, self._version)

    def open(self, sampler: SamplerIdentity = A, *, nbytes: int = UNIT_BYTES, next_sequence: int = 0) -> int:
        messages: list[ToSampler] = []
        opened = self.intake.open(sampler, nbytes, TRANSITIONS, messages.append, next_sequence=next_sequence)
        self.heard[opened.token] = messages
        return opened.token

    def offer(
        self, token: int, sequence: int, number: int = 0, sampler: SamplerIdentity = A, **fields: Any
    ) -> None:
        fragment = make_fragment(sampler, sequence, version(number), **fields)
        self.intake.offer(token, fragment, fragment.nbytes)

    def take(self) -> TakenBatch | None:
        return self.intake.next_batch(timeout_s=0.0)

    def take_and_commit(self, number: int) -> TakenBatch:
        taken = self.take()
        assert taken is not None
        self._version = version(number)
        self.intake.commit(taken, self._version)
        return taken

    def settled(self, token: int) -> list[int]:
        return [message.through for message in self.heard[token] if isinstance(message, Settled)]

    def permits(self, token: int) -> list[Permit]:
        return [permit for grant in self.grants(token) for permit in grant.permits]

    def grants(self, token: int) -> list[Grant]:
        return [message for message in self.heard[token] if isinstance(message, Grant)]

    @property
    def version(self) -> PolicyVersion:
        return self._version


# Who may open.


def test_nobody_may_open_before_the_accounts_are_restored() -> None:
    intake = Intake(make_config())
    with pytest.raises(UnavailableError, match="no policy version"):
        intake.open(A, UNIT_BYTES, TRANSITIONS, lambda message: None)


def test_a_superseded_incarnation_is_refused_for_good() -> None:
    door = Door(accounts=(LearnerAccount(SamplerIdentity("sampler-a", 3), 4, 40),))
    with pytest.raises(HandshakeError, match="sampler-a/0 is superseded by incarnation 3"):
        door.open(A)


def test_a_newer_incarnation_ends_the_older_ones_stream_for_good() -> None:
    door = Door()
    old = door.open(A)
    door.open(SamplerIdentity("sampler-a", 1))
    assert door.heard[old][-1] == Closed("sampler-a/1 has opened a newer stream", draining=False)
    with pytest.raises(UnavailableError):
        door.offer(old, 0)


def test_what_an_older_incarnation_had_delivered_is_still_trained() -> None:
    door = Door(batch_fragments=1)
    door.offer(door.open(A), 0)
    door.open(SamplerIdentity("sampler-a", 1))
    assert door.take_and_commit(1).fragments[0].id.sampler == A


def test_the_same_incarnation_may_come_back_before_its_old_stream_is_noticed_dead() -> None:
    door = Door()
    old = door.open(A)
    new = door.open(A)
    closed = door.heard[old][-1]
    assert isinstance(closed, Closed)
    assert closed.draining
    door.intake.close(old)  # noticed at last: nothing happens to the new one
    door.offer(new, 0)


def test_a_buffer_that_could_come_to_a_standstill_is_refused_with_the_key_to_change() -> None:
    door = Door(capacity_fragments=8, batch_fragments=8)
    with pytest.raises(ConfigurationError, match=r"stream\.capacity_bytes: 65536 .* at least \d+ are needed"):
        door.open(A)


def test_more_streams_than_the_buffer_can_serve_may_try_again_later() -> None:
    door = Door(capacity_fragments=8, batch_fragments=4)
    tokens = [door.open(SamplerIdentity(f"s{i}", 0)) for i in range(4)]
    with pytest.raises(ExhaustedError, match="too few for 5 streams"):
        door.open(SamplerIdentity("s4", 0))
    door.intake.close(tokens[0])
    door.open(SamplerIdentity("s4", 0))


def test_fragments_of_another_size_than_the_runs_are_refused() -> None:
    with pytest.raises(HandshakeError, match=f"this run's have {TRANSITIONS}"):
        Door().intake.open(A, UNIT_BYTES, TRANSITIONS + 1, lambda message: None)


# What is taken.


@pytest.mark.parametrize("lag_control", ["pace", "drop"])
@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_lag_k_is_taken_and_k_plus_1_is_dropped_at_insertion(max_lag: int, lag_control: str) -> None:
    door = Door(at=10, batch_fragments=1, sync__max_policy_lag=max_lag, sync__lag_control=lag_control)
    token = door.open(A, next_sequence=2)
    door.offer(token, 0, 10 - max_lag - 1)
    assert door.intake.num_held == 0
    assert door.intake.dropped == {"stale": TRANSITIONS}
    door.offer(token, 1, 10 - max_lag)
    taken = door.take()
    assert taken is not None
    assert taken.lags == (max_lag,)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_lag_k_is_taken_and_k_plus_1_is_dropped_at_use(max_lag: int) -> None:
    door = Door(at=10, batch_fragments=1, sync__max_policy_lag=max_lag)
    token = door.open()
    for sequence in range(max_lag + 2):
        door.offer(token, sequence, 10)
    lags = []
    for number in range(max_lag + 1):
        lags += door.take_and_commit(11 + number).lags
    assert lags == list(range(max_lag + 1))
    assert door.take() is None
    assert door.intake.dropped == {"stale": TRANSITIONS}


def test_a_batch_taken_ahead_counts_the_lag_it_will_have_when_it_is_used() -> None:
    door = Door(batch_fragments=1, sync__max_policy_lag=1)
    token = door.open()
    for sequence in range(3):
        door.offer(token, sequence)
    first, second = door.take(), door.take()
    assert first is not None
    assert second is not None
    assert (first.lags, second.lags) == ((0,), (1,))
    assert door.take() is None, "its lag would be 2"


def test_the_oldest_versions_go_first_and_a_batch_is_in_order_of_sampler_and_sequence() -> None:
    door = Door(at=5, sync__max_policy_lag=5, batch_fragments=3)
    b, a = door.open(B), door.open(A)
    door.offer(b, 0, 5, B)
    door.offer(a, 0, 4)
    door.offer(b, 1, 5, B)
    door.offer(a, 1, 4)
    taken = door.take()
    assert taken is not None
    assert [str(fragment.id) for fragment in taken.fragments] == [
        "sampler-a/0/0",
        "sampler-a/0/1",
        "sampler-b/0/0",
    ]
    assert taken.lags == (1, 1, 0)


def test_a_smaller_batch_is_taken_after_the_deadline_while_the_buffer_is_low() -> None:
    door = Door(batch_fragments=2, stream__batch_deadline_s=5.0)
    door.offer(door.open(), 0)
    assert door.take() is None
    door.clock.now = 4.9
    assert door.take() is None
    door.clock.now = 5.0
    taken = door.take()
    assert taken is not None
    assert len(taken.fragments) == 1


def test_a_duplicate_is_recognised_and_frees_its_bytes() -> None:
    door = Door(batch_fragments=2)
    token = door.open()
    door.offer(token, 0)
    door.intake.close(token)
    again = door.open(next_sequence=1)
    door.offer(again, 0)
    assert (door.intake.duplicates, door.intake.num_held) == (1, 1)
    assert door.intake.fill_ratio == UNIT_BYTES / (64 * UNIT_BYTES)


def test_several_fragments_at_once_are_as_good_as_one_by_one() -> None:
    door = Door(batch_fragments=2)
    token = door.open()
    fragments = [make_fragment(A, sequence, version(0)) for sequence in (0, 0, 1)]
    door.intake.offer_all(token, [(fragment, fragment.nbytes) for fragment in fragments])
    taken = door.take()
    assert taken is not None
    assert [fragment.id.sequence for fragment in taken.fragments] == [0, 1]
    assert door.intake.duplicates == 1


def test_more_than_granted_is_a_breach_of_contract() -> None:
    door = Door()
    token = door.open()
    grant = door.heard[token][-1]
    assert isinstance(grant, Grant)
    fragment = make_fragment(A, 0, version(0))
    with pytest.raises(InvalidDataError, match="on a credit of"):
        door.intake.offer(token, fragment, grant.total_bytes + 1)


# When it is settled.


def test_what_is_trained_is_settled_by_the_commit_and_not_before() -> None:
    door = Door(batch_fragments=2)
    token = door.open()
    door.offer(token, 0)
    door.offer(token, 1)
    taken = door.take()
    assert taken is not None
    accounts = door.intake.accounts(including=taken)
    assert accounts == [LearnerAccount(A, 1, 2 * TRANSITIONS)]
    assert door.intake.accounts() == [LearnerAccount(A)]
    assert door.settled(token) == []
    door.intake.commit(taken, version(1))
    assert door.settled(token) == [1]
    assert door.intake.accounts() == accounts


def test_only_what_was_published_is_settled_by_the_commit() -> None:
    """A fragment that is dropped while the version is on its way waits for the next one."""
    door = Door(at=9, batch_fragments=1, sync__max_policy_lag=0)
    token = door.open()
    door.offer(token, 0, 9)
    taken = door.take()
    assert taken is not None
    published = door.intake.accounts(including=taken)
    door.offer(token, 1, 8)
    assert door.intake.accounts(including=taken) == published
    door.intake.commit(taken, version(10))
    assert door.settled(token) == [0]
    door.offer(token, 2, 10)
    door.take_and_commit(11)
    assert door.settled(token) == [0, 2]
    assert door.intake.accounts() == [LearnerAccount(A, 2, 2 * TRANSITIONS, {"stale": TRANSITIONS})]


def test_a_refused_fragment_is_settled_in_its_turn_with_its_reason() -> None:
    door = Door(batch_fragments=1)
    token = door.open()
    door.offer(token, 0)
    door.intake.refuse(token, 1, 5, UNIT_BYTES, "non_finite", "reward[3, 1] is NaN")
    assert Refused(1, "non_finite", "reward[3, 1] is NaN") in door.heard[token]
    assert door.settled(token) == []
    door.take_and_commit(1)
    assert door.settled(token) == [1]
    assert door.intake.accounts() == [LearnerAccount(A, 1, TRANSITIONS, {"non_finite": 5})]


def test_a_sampler_that_only_delivers_rubbish_need_not_keep_it_for_ever() -> None:
    door = Door(capacity_fragments=16, batch_fragments=1)
    token = door.open()
    for sequence in range(6):
        door.intake.refuse(token, sequence, 1, UNIT_BYTES, "checksum", "altered on the way")
    assert door.settled(token), "nothing is published, and yet the sampler may forget"
    assert door.intake.fill_ratio == 0


def test_a_new_learner_goes_on_where_the_published_accounts_end() -> None:
    door = Door(at=4, accounts=(LearnerAccount(A, 2, 20, {"stale": 4}),), batch_fragments=1)
    token = door.open(next_sequence=4)
    door.offer(token, 2, 4, produced_through=24)  # resent although settled: the sampler had not heard
    door.offer(token, 3, 4, produced_through=24 + TRANSITIONS)
    door.take_and_commit(5)
    assert (door.intake.duplicates, door.intake.gaps) == (1, 0)
    assert door.intake.accounts() == [LearnerAccount(A, 3, 20 + TRANSITIONS, {"stale": 4})]


def test_a_jump_in_sequence_is_counted_said_and_accounted_for() -> None:
    door = Door(batch_fragments=1)
    token = door.open()
    door.offer(token, 0, produced_through=TRANSITIONS)
    door.offer(token, 3, produced_through=4 * TRANSITIONS)
    assert door.intake.gaps == 1
    assert ("gap", {"fragment": "sampler-a/0/3", "missing_transitions": 2 * TRANSITIONS}) in door.events
    for number in (1, 2):
        door.take_and_commit(number)
    assert door.intake.accounts() == [LearnerAccount(A, 3, 2 * TRANSITIONS, {"missing": 2 * TRANSITIONS})]


def test_batches_are_published_in_the_order_in_which_they_were_taken() -> None:
    door = Door(batch_fragments=1)
    token = door.open()
    door.offer(token, 0)
    door.offer(token, 1)
    first, second = door.take(), door.take()
    assert first is not None
    assert second is not None
    with pytest.raises(ValueError, match="in the order"):
        door.intake.commit(second, version(1))
    door.intake.commit(first, version(1))
    door.intake.commit(second, version(2))


# Leave to send.


def test_credit_stops_at_the_high_watermark_and_says_so() -> None:
    door = Door(capacity_fragments=10, batch_fragments=2, sync__max_policy_lag=9)
    token = door.open()
    sequence = 0
    while (grant := door.heard[token][-1]) and isinstance(grant, Grant) and not grant.throttled_by:
        door.offer(token, sequence)
        sequence += 1
    assert grant == Grant(sequence * UNIT_BYTES, throttled_by="high_watermark")
    assert door.intake.fill_ratio >= 0.8
    door.take_and_commit(1)
    resumed = door.heard[token][-1]
    assert isinstance(resumed, Grant)
    assert resumed.throttled_by == ""


def test_pacing_grants_a_permit_with_the_bytes_it_needs() -> None:
    door = Door(sync__lag_control="pace", sync__max_policy_lag=0, batch_fragments=1)
    token = door.open()
    assert door.heard[token] == [Grant(UNIT_BYTES, (Permit(0, 0),), "")]
    door.offer(token, 0)
    throttled = door.heard[token][-1]
    assert isinstance(throttled, Grant)
    assert (throttled.permits, throttled.throttled_by) == ((), "policy_lag")
    door.take_and_commit(1)
    assert door.permits(token)[-1] == Permit(1, 1)


def test_who_leaves_gets_no_more_permits_and_what_it_still_owes_is_awaited() -> None:
    door = Door(sync__lag_control="pace", sync__max_policy_lag=0, batch_fragments=2)
    a, b = door.open(A), door.open(B)
    assert (len(door.permits(a)), len(door.permits(b))) == (2, 0)
    door.offer(a, 0)
    door.intake.goodbye(a, 0)
    assert len(door.permits(b)) == 1, "the permit that will not be used went to the other"


def test_after_a_restart_resends_come_before_new_permits() -> None:
    accounts = (LearnerAccount(A), LearnerAccount(B))
    door = Door(accounts=accounts, sync__lag_control="pace", sync__max_policy_lag=0, batch_fragments=2)
    a = door.open(A, next_sequence=1)
    assert door.permits(a) == [], "B may still have something to resend"
    b = door.open(B, next_sequence=1)
    assert door.permits(a) == door.permits(b) == [], "both places are taken by what they have started"
    door.offer(a, 0)
    door.offer(b, 0, sampler=B)
    assert door.take() is not None


def test_a_sampler_that_never_comes_back_holds_up_a_new_learner_only_so_long() -> None:
    accounts = (LearnerAccount(A), LearnerAccount(B))
    door = Door(accounts=accounts, sync__lag_control="pace", batch_fragments=1)
    a = door.open(A)
    assert door.permits(a) == []
    door.clock.now = 3.0
    assert door.take() is None
    assert door.permits(a) != []


def test_the_place_of_a_straggler_goes_to_others_after_its_deadline() -> None:
    door = Door(sync__lag_control="pace", sync__max_policy_lag=0, batch_fragments=2)
    first = door.open(A)
    slow = door.open(B)
    door.offer(first, 0)
    door.intake.close(first)  # its other permit goes to B, which never delivers
    (permit,) = door.permits(slow)
    again = door.open(A, next_sequence=1)
    assert door.take() is None
    door.clock.now = 30.0
    assert door.take() is None
    assert ("straggler", {"sampler": "sampler-b/0", "permit": permit.index}) in door.events
    door.offer(again, 0)
    door.offer(again, 1)
    assert door.take() is not None


def test_a_batch_never_waits_for_a_sampler_that_is_gone() -> None:
    door = Door(sync__lag_control="pace", sync__max_policy_lag=0, batch_fragments=2)
    a, b = door.open(A), door.open(B)
    door.intake.close(a)  # one permit is now with each; the clock stands still from here on
    a = door.open(A)
    assert len(door.permits(b)) == 2, "what the one that was gone held went to the other"
    door.offer(b, 0, sampler=B)
    door.intake.close(b)
    assert door.take() is None
    door.offer(a, 0)
    assert door.take() is not None


# Leveling.


def level(door: Door, *speeds: tuple[int, SamplerIdentity, float], rounds: int) -> None:
    """Every stream delivers one fragment a round at its speed; each round is a batch."""
    for sequence in range(rounds):
        for token, sampler, speed in speeds:
            fragment = replace(
                make_fragment(sampler, sequence, door.version), steps_per_s=speed, permit=sequence
            )
            door.intake.offer(token, fragment, fragment.nbytes)
        door.take_and_commit(door.version.number + 1)


def test_a_slow_sampler_hears_of_its_quota_with_its_grants_and_an_event_says_why() -> None:
    door = Door(sync__lag_control="pace", sync__max_policy_lag=1, batch_fragments=2, sampler__leveling="auto")
    a, b = door.open(A), door.open(B)
    level(door, (a, A, 100.0), (b, B, 50.0), rounds=4)
    quota = {"sampler": "sampler-b/0", "quota_steps": 2, "steps_per_s": 50.0, "pace_steps_per_s": 100.0}
    assert door.events == [("leveling", quota)]
    assert [door.grants(token)[-1].quota_steps for token in (a, b)] == [4, 2]


def test_without_leveling_no_quota_is_told_whatever_the_speeds() -> None:
    door = Door(sync__lag_control="pace", sync__max_policy_lag=1, batch_fragments=2)
    a, b = door.open(A), door.open(B)
    level(door, (a, A, 100.0), (b, B, 1.0), rounds=10)
    assert {grant.quota_steps for token in (a, b) for grant in door.grants(token)} == {0}


# What wakes whom.


@pytest.mark.parametrize("event", ["offer", "stop"])
def test_a_waiting_trainer_is_woken(event: str) -> None:
    intake = Intake(make_config(batch_fragments=1, sync__lag_control="drop"))
    intake.restore([], version(0))
    token = intake.open(A, UNIT_BYTES, TRANSITIONS, lambda message: None).token
    results: list[TakenBatch | None] = []
    trainer = threading.Thread(target=lambda: results.append(intake.next_batch(timeout_s=120.0)))
    trainer.start()
    if event == "offer":
        intake.offer(token, make_fragment(A, 0, version(0)), UNIT_BYTES)
    else:
        intake.stop()
    trainer.join(60.0)
    assert not trainer.is_alive()
    assert (results[0] is not None) == (event == "offer")


def test_stopping_ends_all_streams_for_now() -> None:
    door = Door()
    token = door.open()
    door.intake.stop()
    assert door.heard[token][-1] == Closed("the learner is draining", draining=True)
    with pytest.raises(UnavailableError, match="draining"):
        door.open()
    assert door.take() is None


def test_waiting_has_a_reason_and_a_timer() -> None:
    intake = Intake(make_config(batch_fragments=1))
    intake.restore([], version(0))
    assert intake.next_batch(timeout_s=0.01) is None
    assert intake.wait_reason == "samplers"
    assert intake.wait_seconds["samplers"] >= 0.01


def test_counters_of_an_idle_sampler_are_kept() -> None:
    door = Door()
    door.intake.report(door.open(), 123, {"fault_hang": 4}, 0)
    assert door.intake.reports[A].produced == 123
