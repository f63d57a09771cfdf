from __future__ import annotations

from pathlib import Path

import pytest
from paramserving import make_record

from headrace.checkpoint.journal import Journal
from headrace.errors import ConfigurationError
from headrace.types import PolicyVersion
from services.paramserver.issued import Issued, IssuedFile


def test_the_issued_number_comes_back(tmp_path: Path) -> None:
    file = IssuedFile(tmp_path)
    for issued in (Issued(1, None), Issued(1, PolicyVersion(1, 0)), Issued(3, PolicyVersion(2, 12345))):
        file.write(issued)
        assert file.read() == issued
    file.close()
    reopened = IssuedFile(tmp_path)
    assert reopened.read() == Issued(3, PolicyVersion(2, 12345))
    reopened.close()


def test_a_new_file_says_nothing(tmp_path: Path) -> None:
    file = IssuedFile(tmp_path)
    assert file.read() is None
    file.close()


@pytest.mark.parametrize("damage", [b"9", b"not numbers at all", b"\xff\xfe\xfd"])
def test_an_altered_file_says_nothing(tmp_path: Path, damage: bytes) -> None:
    file = IssuedFile(tmp_path)
    file.write(Issued(1, PolicyVersion(1, 5)))
    path = tmp_path / "paramserver" / "issued"
    path.write_bytes(damage + path.read_bytes()[len(damage) :])
    assert file.read() is None
    file.close()


def test_a_second_server_of_the_same_run_is_refused(tmp_path: Path) -> None:
    first = IssuedFile(tmp_path)
    with pytest.raises(ConfigurationError, match="another paramserver is running"):
        IssuedFile(tmp_path, sleep=lambda _s: None)
    first.close()


def test_a_server_waits_for_its_predecessor_to_vanish(tmp_path: Path) -> None:
    first = IssuedFile(tmp_path)
    second = IssuedFile(tmp_path, sleep=lambda _s: first.close())
    second.close()


def test_the_newest_version_comes_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(5):
        assert journal.write(make_record(number))
    assert Journal(tmp_path).read() == make_record(4)


def test_a_version_without_training_state_comes_back(tmp_path: Path) -> None:
    Journal(tmp_path).write(make_record(3, training=None))
    assert Journal(tmp_path).read() == make_record(3, training=None)


def test_a_torn_write_leaves_the_version_before(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(make_record(1))
    journal.write(make_record(2))
    newest = tmp_path / "paramserver" / "newest-1"
    for length in range(0, newest.stat().st_size, 97):
        torn = newest.read_bytes()[:length] + (tmp_path / "paramserver" / "newest-0").read_bytes()[length:]
        newest.write_bytes(torn)
        assert Journal(tmp_path).read() == make_record(1)
        newest.unlink()
        again = Journal(tmp_path)
        again.read()
        again.write(make_record(2))
        assert Journal(tmp_path).read() == make_record(2)


def test_after_a_restart_the_next_write_spares_the_newest(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(make_record(1))
    restarted = Journal(tmp_path)
    restarted.read()
    restarted.write(make_record(2))
    (tmp_path / "paramserver" / "newest-1").write_bytes(b"torn")
    assert Journal(tmp_path).read() == make_record(1)


def test_a_large_version_is_not_kept_and_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_bytes=10)
    assert not journal.write(make_record(1))
    assert journal.read() is None
