"""Members come, contribute and go in any order: every contribution ends in one closing, or is void."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.sync.rounds import COMPLETE, DEADLINE, ENDED, WINDOW, Closing, RoundPolicy, Rounds

NAMES = ("a", "b", "c", "d")
names = st.sampled_from(NAMES)
parties = st.sampled_from([*NAMES, "first group", "second group"])
limits = st.none() | st.integers(1, 20)


class RoundsMachine(RuleBasedStateMachine):
    """Against what can be said of rounds without knowing how they are kept."""

    @initialize(
        quorum=st.none() | st.integers(1, 5), window=limits, deadline=limits, expected=st.sets(parties)
    )
    def begin(self, quorum: int | None, window: int | None, deadline: int | None, expected: set[str]) -> None:
        self.policy = RoundPolicy(quorum, window, deadline)
        self.rounds = Rounds(self.policy, expected=expected)
        self.now = 0
        self.awaited = set(expected)
        self.missing: set[str] = set()
        self.party_of: dict[str, str] = {}
        self.offered: set[str] = set()
        self.opened_at = 0
        self.num_offers = self.num_void = self.num_closed = 0

    @rule(member=names, party=st.none() | st.sampled_from(["first group", "second group"]))
    def join(self, member: str, party: str | None) -> None:
        self.rounds.join(member, party=party)
        self.party_of[member] = party or member
        self.missing &= set(self.party_of.values())
        self.awaited.discard(self.party_of[member])

    @rule(member=names)
    def leave(self, member: str) -> None:
        assert self.rounds.leave(member) == (member in self.offered)
        self.party_of.pop(member, None)
        self.missing &= set(self.party_of.values())
        self.void({member})

    @precondition(lambda self: self.may_offer())
    @rule(data=st.data())
    def offer(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.may_offer())))
        self.rounds.offer(member, self.now)
        if not self.offered:
            self.opened_at = self.now
        self.offered.add(member)
        self.missing.discard(self.party_of[member])
        self.num_offers += 1

    @rule(seconds=st.integers(0, 15))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def close(self) -> None:
        closing = self.rounds.close(self.now)
        whole = self.whole_parties()
        members = {member for member, party in self.party_of.items() if party in whole}
        reason = self.reason(len(whole))
        if not members or not reason:
            assert closing is None
            return
        assert closing == Closing(tuple(sorted(members)), reason, self.now - self.opened_at)
        if reason == DEADLINE:
            self.awaited.clear()
            self.missing |= set(self.party_of.values()) - whole
        self.take(members)

    @rule()
    def end(self) -> None:
        closing = self.rounds.end(self.now)
        if not self.offered:
            assert closing is None
            return
        assert closing == Closing(tuple(sorted(self.offered)), ENDED, self.now - self.opened_at)
        self.take(set(self.offered))

    @precondition(lambda self: hasattr(self, "rounds"))
    @invariant()
    def everything_offered_is_closed_void_or_still_there(self) -> None:
        assert self.num_offers == self.num_closed + self.num_void + len(self.offered)
        assert self.rounds.is_open == bool(self.offered)
        assert self.rounds.members == tuple(sorted(self.party_of))

    @precondition(lambda self: hasattr(self, "rounds"))
    @invariant()
    def the_alarm_rings_exactly_when_time_may_close_the_round(self) -> None:
        limits = [limit for limit in (self.policy.window_s, self.policy.deadline_s) if limit is not None]
        expected = self.opened_at + min(limits) if self.offered and limits else float("inf")
        assert self.rounds.alarm() == expected

    def may_offer(self) -> set[str]:
        return self.party_of.keys() - self.offered if hasattr(self, "party_of") else set()

    def whole_parties(self) -> set[str]:
        return {
            party
            for party in self.party_of.values()
            if all(member in self.offered for member, of in self.party_of.items() if of == party)
        }

    def reason(self, whole: int) -> str:
        if not self.offered:
            return ""
        parties = len(set(self.party_of.values()) - self.missing) + len(self.awaited)
        if whole >= (parties if self.policy.quorum is None else min(self.policy.quorum, parties)):
            return COMPLETE
        for limit, reason in ((self.policy.window_s, WINDOW), (self.policy.deadline_s, DEADLINE)):
            if limit is not None and self.now - self.opened_at >= limit:
                return reason
        return ""

    def void(self, members: set[str]) -> None:
        self.num_void += len(members & self.offered)
        self.offered -= members

    def take(self, members: set[str]) -> None:
        assert members <= self.offered
        self.num_closed += len(members)
        self.offered -= members
        self.opened_at = self.now


RoundsMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestRounds = RoundsMachine.TestCase
