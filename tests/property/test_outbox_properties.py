"""Whatever happens in whatever order: within credit, in order, nothing forgotten before it is settled."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pipe import FRAGMENT_BYTES, make_fragment

from headrace.clients.outbox import Outbox
from headrace.flow.messages import Grant, Permit

CAPACITY = 5


class Sending(RuleBasedStateMachine):
    """A sender against a receiver that remembers what it got, settles some of it, and may be replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(FRAGMENT_BYTES)
        self.produced = 0
        self.granted = 0  # on this stream, in fragments
        self.sent: list[int] = []  # on this stream
        self.received_through = -1
        self.settled = -1
        self.permits = 0
        self.next_permit = 0

    @rule(paced=st.booleans(), forgets=st.booleans())
    def connect(self, paced: bool, forgets: bool) -> None:
        self.outbox.lost()
        if forgets:  # a new receiver knows only what was settled
            self.received_through = self.settled
        self.outbox.opened(self.settled, paced)
        self.granted, self.permits, self.sent = 0, 0, []

    @rule()
    def disconnect(self) -> None:
        self.outbox.lost()
        self.granted, self.permits, self.sent = 0, 0, []

    @rule(count=st.integers(0, 3), permits=st.integers(0, 3))
    def grant(self, count: int, permits: int) -> None:
        if self.outbox.open:
            room = CAPACITY - (self.granted - len(self.sent))
            self.granted += min(count, room)
            given = tuple(Permit(self.next_permit + index, 0) for index in range(permits))
            self.next_permit += permits
            self.permits += permits
            self.outbox.grant(Grant(self.granted * FRAGMENT_BYTES, given))

    @rule()
    def produce(self) -> None:
        if self.outbox.blocked_by(0):
            return
        paced = self.outbox.paced
        ticket = self.outbox.take_ticket()
        assert (ticket.permit >= 0) == paced
        self.permits -= paced
        self.outbox.add(make_fragment(self.produced, permit=ticket.permit))
        self.produced += 1

    @rule(size=st.sampled_from([1, FRAGMENT_BYTES, 3 * FRAGMENT_BYTES]))
    def transmit(self, size: int) -> None:
        for fragment in self.outbox.take_sendable(size):
            sequence = fragment.id.sequence
            if self.sent:
                assert sequence > self.sent[-1]
            else:
                assert sequence == self.outbox.settled_through + 1
            assert sequence <= self.received_through + 1, "a fragment was left out"
            self.sent.append(sequence)
            self.received_through = max(self.received_through, sequence)

    @rule(share=st.floats(0, 1))
    def settle(self, share: float) -> None:
        self.settled += int(share * (self.received_through - self.settled))
        if self.outbox.open:
            self.outbox.settle(self.settled)

    @invariant()
    def credit_is_kept(self) -> None:
        assert len(self.sent) <= self.granted
        assert self.outbox.sent_bytes <= self.outbox.granted_bytes

    @invariant()
    def everything_unsettled_is_held(self) -> None:
        held = self.produced - 1 - self.outbox.settled_through
        assert self.outbox.unsettled_bytes == held * FRAGMENT_BYTES
        assert 0 <= self.outbox.unsent_bytes <= self.outbox.unsettled_bytes

    @invariant()
    def permits_are_not_overdrawn(self) -> None:
        assert self.permits >= 0


Sending.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestSending = Sending.TestCase
