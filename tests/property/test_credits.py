"""Credit is reserved space: whatever happens, what is held and what is promised fit the buffer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.errors import ConfigurationError, InvalidDataError
from headrace.flow.credits import CreditPool
from headrace.flow.watermarks import Watermarks

CAPACITY = 1000


def make_pool(capacity: int = CAPACITY) -> CreditPool:
    return CreditPool(capacity, Watermarks(0.8, 0.2))


class PoolMachine(RuleBasedStateMachine):
    """Streams that join, send within their credit, and leave; a consumer that releases."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool()
        self.units: dict[int, int] = {}
        self.held: list[tuple[int, int]] = []
        self.joined = 0

    @rule(unit=st.integers(1, 200))
    def join(self, unit: int) -> None:
        self.pool.join(self.joined, unit)
        self.units[self.joined] = unit
        self.joined += 1

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(self.units)))
        self.pool.leave(stream)
        del self.units[stream]

    @rule()
    def share_out(self) -> None:
        before = {stream: self.pool.total(stream) for stream in self.units}
        self.pool.share_out(self.units)
        for stream, total in before.items():
            assert self.pool.total(stream) >= total

    @precondition(lambda self: self.units)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(self.units)))
        if self.pool.available(stream):
            nbytes = data.draw(st.integers(1, self.pool.available(stream)))
            self.pool.arrived(stream, nbytes)
            self.held.append((stream, nbytes))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(*self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def everything_promised_fits(self) -> None:
        pool = self.pool
        assert pool.buffered == sum(nbytes for _, nbytes in self.held)
        assert pool.outstanding == sum(pool.available(stream) for stream in self.units)
        assert pool.buffered + pool.outstanding <= CAPACITY
        assert all(pool.available(stream) >= 0 for stream in self.units)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.integers(1, 8), st.integers(1, 60))
def test_every_stream_may_send_one_fragment_if_one_of_each_fits(streams: int, unit: int) -> None:
    pool = make_pool()
    for stream in range(streams):
        pool.join(stream, unit)
    pool.share_out(range(streams))
    assert all(pool.available(stream) >= unit for stream in range(streams))


@given(st.integers(1, 6), st.integers(1, 50))
def test_shares_of_equal_streams_differ_by_one_unit_at_most(streams: int, unit: int) -> None:
    pool = make_pool()
    for stream in range(streams):
        pool.join(stream, unit)
    pool.share_out(range(streams))
    shares = [pool.available(stream) for stream in range(streams)]
    assert max(shares) - min(shares) <= unit


@given(st.integers(1, 24))
def test_a_newcomer_finds_room_where_everyone_else_is_silent(silent: int) -> None:
    pool = make_pool()
    for stream in range(silent + 1):
        pool.join(stream, 5)
        pool.share_out(range(stream + 1))
    assert pool.available(silent) >= 5


def test_the_rest_of_a_credit_is_topped_up_to_a_whole_fragment() -> None:
    pool = make_pool()
    pool.join(0, 100)
    assert pool.top_up(0, 100)
    pool.arrived(0, 40)
    assert pool.top_up(0, 100)
    assert (pool.available(0), pool.total(0)) == (100, 140)


def test_nothing_is_granted_from_the_high_watermark_until_the_release_line() -> None:
    pool = make_pool()
    pool.join(0, 100)
    pool.grant(0, 800)
    pool.arrived(0, 800)
    assert not pool.grant(0, 100)
    pool.release(0, 100)  # 700: below the high mark, above the release line of 650
    assert not pool.grant(0, 100)
    pool.release(0, 51)
    assert pool.grant(0, 100)


def test_leaving_gives_back_what_was_not_used_and_keeps_what_was_sent() -> None:
    pool = make_pool()
    pool.join(0, 100)
    pool.grant(0, 300)
    pool.arrived(0, 100)
    pool.leave(0)
    assert (pool.outstanding, pool.buffered, pool.room) == (0, 100, 900)
    pool.release(0, 100)
    assert pool.room == CAPACITY


def test_more_than_was_granted_is_refused_in_words() -> None:
    pool = make_pool()
    pool.join(0, 100)
    pool.grant(0, 100)
    with pytest.raises(InvalidDataError, match="101 bytes came in on a credit of 100"):
        pool.arrived(0, 101)
    assert (pool.buffered, pool.outstanding) == (0, 100)


def test_a_fragment_that_no_buffer_can_hold_is_refused_with_the_key_to_change() -> None:
    with pytest.raises(ConfigurationError, match=r"stream\.capacity_bytes: 1000 bytes can't hold .* 1001"):
        make_pool().join(0, 1001)
