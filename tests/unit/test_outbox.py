"""The sender's bookkeeping: order, credit, permits, what is kept and what is forgotten."""

from __future__ import annotations

import pytest
from pipe import FRAGMENT_BYTES, make_fragment

from headrace.clients.outbox import Outbox, Ticket
from headrace.flow.messages import Grant, Permit


def opened(*, paced: bool = False, credit: int = 100, permits: tuple[Permit, ...] = ()) -> Outbox:
    """An outbox on an open stream with credit for so many fragments."""
    outbox = Outbox(FRAGMENT_BYTES)
    outbox.opened(-1, paced)
    outbox.grant(Grant(credit * FRAGMENT_BYTES, permits))
    return outbox


def sendable(outbox: Outbox) -> list[int]:
    sent: list[int] = []
    while fragments := outbox.take_sendable(2**20):
        sent += [fragment.id.sequence for fragment in fragments]
    return sent


def test_the_reasons_in_their_order() -> None:
    outbox = Outbox(FRAGMENT_BYTES)
    assert outbox.blocked_by(5) == "connection"
    outbox.opened(-1, paced=True)
    assert outbox.blocked_by(5) == "permit"
    outbox.grant(Grant(0, (Permit(0, 7),)))
    assert outbox.blocked_by(5) == "credit"
    outbox.grant(Grant(FRAGMENT_BYTES))
    assert outbox.blocked_by(5) == "parameters"
    assert outbox.blocked_by(7) == ""


def test_without_pacing_any_parameters_will_do() -> None:
    outbox = opened()
    assert outbox.blocked_by(-1) == "parameters"
    assert outbox.blocked_by(0) == ""
    assert outbox.take_ticket() == Ticket(-1, 0)


def test_permits_are_used_lowest_first_and_once() -> None:
    outbox = opened(paced=True, permits=(Permit(4, 2), Permit(1, 0)))
    outbox.grant(Grant(0, (Permit(2, 1),)))
    assert [outbox.take_ticket().permit for _ in range(3)] == [1, 2, 4]
    assert outbox.blocked_by(9) == "permit"


def test_sent_bytes_never_exceed_the_grant() -> None:
    outbox = opened(credit=2)
    for sequence in range(5):
        outbox.add(make_fragment(sequence))
    assert sendable(outbox) == [0, 1]
    outbox.grant(Grant(3 * FRAGMENT_BYTES - 1))
    assert sendable(outbox) == []
    outbox.grant(Grant(3 * FRAGMENT_BYTES))
    assert sendable(outbox) == [2]
    assert outbox.unsent_bytes == 2 * FRAGMENT_BYTES


def test_what_is_unsent_counts_against_the_credit_for_a_new_fragment() -> None:
    outbox = opened(credit=1)
    outbox.add(make_fragment(0))
    assert outbox.blocked_by(0) == "credit"


def test_settled_fragments_are_forgotten_and_others_kept() -> None:
    outbox = opened()
    for sequence in range(4):
        outbox.add(make_fragment(sequence))
    sendable(outbox)
    outbox.settle(1)
    assert outbox.unsettled_bytes == 2 * FRAGMENT_BYTES
    outbox.settle(0)  # late and older: changes nothing
    assert outbox.settled_through == 1


def test_a_new_stream_resends_what_is_unsettled_in_order_with_its_own_credit() -> None:
    outbox = opened()
    for sequence in range(6):
        outbox.add(make_fragment(sequence))
    assert sendable(outbox) == [0, 1, 2, 3, 4, 5]
    outbox.lost()
    assert outbox.blocked_by(0) == "connection"
    assert outbox.take_sendable(2**20) == []
    outbox.opened(2, paced=False)
    assert sendable(outbox) == []  # the old grant is void
    outbox.grant(Grant(2 * FRAGMENT_BYTES))
    assert sendable(outbox) == [3, 4]
    outbox.settle(5)  # learned elsewhere: the rest need not be sent
    assert outbox.unsent_bytes == outbox.unsettled_bytes == 0
    assert outbox.all_sent


def test_permits_die_with_the_stream_but_a_ticket_in_use_lives() -> None:
    outbox = opened(paced=True, permits=(Permit(0, 0), Permit(1, 0)))
    ticket = outbox.take_ticket()
    outbox.lost()
    outbox.opened(-1, paced=True)
    assert outbox.blocked_by(0) == "permit"
    assert outbox.next_sequence == 1  # one is started
    outbox.add(make_fragment(0, permit=ticket.permit))
    outbox.grant(Grant(FRAGMENT_BYTES))
    (fragment,) = outbox.take_sendable(2**20)
    assert fragment.permit == ticket.permit


def test_next_sequence_counts_what_is_started_until_it_is_abandoned() -> None:
    outbox = opened()
    assert outbox.next_sequence == 0
    outbox.take_ticket()
    assert outbox.next_sequence == 1
    outbox.abandon()
    assert outbox.next_sequence == 0


def test_a_gap_in_the_sequence_is_a_fault_of_ours() -> None:
    outbox = opened()
    with pytest.raises(ValueError, match="after sequence -1"):
        outbox.add(make_fragment(1))


def test_about_one_message_is_taken_at_a_time_and_never_none() -> None:
    outbox = opened()
    for sequence in range(5):
        outbox.add(make_fragment(sequence))
    assert len(outbox.take_sendable(2 * FRAGMENT_BYTES)) == 2
    assert len(outbox.take_sendable(1)) == 1
