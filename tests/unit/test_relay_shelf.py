"""What a relay holds: the newest version and at most so many older ones, which are read to their end."""

from __future__ import annotations

import pytest
from relaying import make_whole

from headrace.types import PolicyVersion
from services.paramserver.relay.shelf import Reading, Shelf


def read_on(reading: Reading, messages: int) -> None:
    for _ in range(messages):
        assert reading.next() is not None


def read_out(reading: Reading) -> int:
    """Read to the end and leave; how many messages there still were."""
    count = 0
    while reading.next() is not None:
        count += 1
    reading.close()
    return count


def test_a_reader_gets_the_messages_of_the_newest_version() -> None:
    shelf, whole = Shelf(), make_whole(7)
    shelf.put(make_whole(6))
    shelf.put(whole)
    reading = shelf.read()
    got = []
    while (message := reading.next()) is not None:
        got.append(message)
    assert (tuple(got), reading.version, reading.whole) == (whole.messages, PolicyVersion(1, 7), True)


@pytest.mark.parametrize("old", [make_whole(4), make_whole(5), make_whole(9, epoch=0)])
def test_what_is_not_newer_changes_nothing(old: object) -> None:
    shelf = Shelf()
    shelf.put(make_whole(5))
    shelf.put(old)  # type: ignore[arg-type]
    assert shelf.newest == PolicyVersion(1, 5)


def test_a_version_that_nobody_reads_is_let_go() -> None:
    shelf = Shelf()
    shelf.put(make_whole(1))
    shelf.put(make_whole(2))
    assert shelf.nbytes == make_whole(2).nbytes


def test_a_reader_finishes_what_it_began_when_a_newer_version_comes() -> None:
    shelf = Shelf()
    shelf.put(make_whole(1))
    slow = shelf.read()
    read_on(slow, 1)
    shelf.put(make_whole(2))
    assert shelf.nbytes == 2 * make_whole(1).nbytes
    assert (read_out(slow), slow.whole) == (3, True)
    assert shelf.nbytes == make_whole(2).nbytes


def test_a_reader_between_the_older_and_the_newest_version_is_cut_off() -> None:
    shelf = Shelf(limit=2)
    shelf.put(make_whole(1))
    slow = shelf.read()
    shelf.put(make_whole(2))
    between = shelf.read()
    read_on(between, 1)
    shelf.put(make_whole(3))
    assert (read_out(between), between.whole) == (0, False)
    assert (read_out(slow), slow.whole) == (4, True)


def test_one_that_does_not_read_keeps_nobody_else_from_reading_to_the_end() -> None:
    shelf = Shelf()
    shelf.put(make_whole(1))
    stuck = shelf.read()
    for number in range(2, 20, 2):
        shelf.put(make_whole(number))
        reading = shelf.read()
        read_on(reading, 1)
        shelf.put(make_whole(number + 1))
        assert (read_out(reading), reading.whole) == (3, True)
    assert (read_out(stuck), stuck.whole) == (4, True)


def test_after_the_slowest_the_next_one_is_not_cut_off_again() -> None:
    shelf = Shelf(limit=2)
    shelf.put(make_whole(1))
    slow = shelf.read()
    for number in (2, 3):
        shelf.put(make_whole(number))
        cut = shelf.read()
    read_out(slow)
    for number in (4, 5, 6):
        shelf.put(make_whole(number))
    assert (read_out(cut), cut.version, cut.whole) == (4, PolicyVersion(1, 3), True)


def test_a_reader_that_goes_away_twice_counts_once() -> None:
    shelf = Shelf()
    shelf.put(make_whole(1))
    stays, goes = shelf.read(), shelf.read()
    goes.close()
    goes.close()
    shelf.put(make_whole(2))
    assert (read_out(stays), stays.whole) == (4, True)


def test_an_empty_shelf_has_nothing_to_read() -> None:
    with pytest.raises(ValueError, match="nothing on the shelf"):
        Shelf().read()
