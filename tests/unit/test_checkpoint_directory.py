from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any

import pytest
from paramserving import make_record, make_report

from headrace.checkpoint import CheckpointDirectory, directory
from headrace.errors import CodecError, HeadraceError
from headrace.types import Evaluation, PolicyVersion


class Killed(BaseException):
    """The process is gone: no clean-up runs."""


def load_newest(checkpoints: CheckpointDirectory) -> tuple[Any, list[int]]:
    skipped: list[int] = []
    record = checkpoints.load_newest(lambda number, _sentence: skipped.append(number))
    return record, skipped


def evaluation(number: int, return_mean: float = 10.0) -> Evaluation:
    return Evaluation(PolicyVersion(1, number), return_mean, 1.0, 100, env_steps=number * 128)


def test_a_version_comes_back_whole(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    record = make_record(7)
    checkpoints.save(record)
    assert load_newest(checkpoints) == (record, [])


def test_a_metric_that_is_not_a_number_does_not_break_the_manifest(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(make_record(1, report=make_report(1, metrics={"explained_variance": math.nan})))
    record, _skipped = load_newest(checkpoints)
    assert math.isnan(record.report.metrics["explained_variance"])


def test_a_version_without_training_state_says_so(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(make_record(1, training=None))
    assert load_newest(checkpoints)[0].training is None


@pytest.mark.parametrize("file", ["acting.safetensors", "training.safetensors", "manifest.json", "DONE"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, file: str, damage: str
) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(make_record(1))
    checkpoints.save(make_record(2))
    path = checkpoints.folder(2) / file
    data = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    record, skipped = load_newest(checkpoints)
    assert record.version.number == 1
    assert skipped == ([] if (file, damage) == ("DONE", "delete") else [2])


def test_a_format_of_the_future_is_refused_in_words(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(make_record(1))
    folder = checkpoints.folder(1)
    manifest = (folder / "manifest.json").read_bytes().replace(b'"format": 1', b'"format": 99')
    (folder / "manifest.json").write_bytes(manifest)
    (folder / "DONE").write_text(hashlib.sha256(manifest).hexdigest())
    with pytest.raises(CodecError, match="newer Headrace"):
        checkpoints.load(checkpoints.folder(1))


def test_whenever_the_writer_is_killed_a_reader_sees_the_old_version_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill it at every single flush and rename of a save, and look what a reader and the next writer find."""
    seen = set()
    for steps_until_killed in range(40):
        run_dir = tmp_path / str(steps_until_killed)
        checkpoints = CheckpointDirectory(run_dir)
        checkpoints.save(make_record(1))
        killed = save_until_killed(checkpoints, make_record(2), steps_until_killed, monkeypatch)
        record, skipped = load_newest(checkpoints)
        assert skipped == []
        assert record in (make_record(1), make_record(2))
        seen.add(record.version.number)
        checkpoints.clean()
        assert load_newest(checkpoints)[0] == record
        checkpoints.save(make_record(3))
        assert load_newest(checkpoints)[0] == make_record(3)
        assert checkpoints.resolve("latest") == checkpoints.folder(3)
        if not killed:
            break
    else:
        pytest.fail("the save never got through")
    assert seen == {1, 2}


def test_whenever_the_writer_is_killed_while_it_adds_training_state_the_version_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps_until_killed in range(40):
        checkpoints = CheckpointDirectory(tmp_path / str(steps_until_killed))
        checkpoints.save(make_record(1, training=None))
        killed = save_until_killed(checkpoints, make_record(1), steps_until_killed, monkeypatch)
        checkpoints.clean()
        assert load_newest(checkpoints)[0] in (make_record(1), make_record(1, training=None))
        if not killed:
            assert load_newest(checkpoints)[0] == make_record(1)
            return
    pytest.fail("the save never got through")


def save_until_killed(
    checkpoints: CheckpointDirectory, record: Any, steps: int, monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Save, killed before the given how-manieth step that touches the disk. True if it was killed."""
    left = steps

    def counted(function: Any) -> Any:
        def step(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return function(*arguments, **named)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(directory.os, "fsync", counted(os.fsync))
        patch.setattr(directory.shutil, "rmtree", counted(directory.shutil.rmtree))
        for name in ("mkdir", "rename", "replace", "symlink_to"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        try:
            checkpoints.save(record)
        except Killed:
            return True
    return False


def test_a_full_disk_leaves_the_last_checkpoint_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(make_record(1))

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(directory.os, "fsync", full)
        with pytest.raises(OSError):
            checkpoints.save(make_record(2))
    assert load_newest(checkpoints) == (make_record(1), [])
    assert sorted(path.name for path in checkpoints.path.iterdir()) == ["0000000001", "latest"]


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    for number in range(1, 7):
        checkpoints.save(make_record(number))
        if number == 2:
            checkpoints.mark_best(evaluation(2))
        checkpoints.prune(keep=3)
    assert checkpoints.numbers() == [2, 4, 5, 6]
    assert checkpoints.load(checkpoints.resolve("best")) == make_record(2)


def test_a_better_version_replaces_the_best(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    for number in range(1, 5):
        checkpoints.save(make_record(number))
    checkpoints.mark_best(evaluation(1))
    checkpoints.mark_best(evaluation(2, 20.0))
    checkpoints.prune(keep=1)
    assert checkpoints.numbers() == [2, 4]
    assert checkpoints.best() == evaluation(2, 20.0)


def test_training_state_that_comes_later_is_added_and_the_evaluation_stays(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(make_record(1, training=None))
    checkpoints.mark_best(evaluation(1))
    checkpoints.save(make_record(1))
    assert load_newest(checkpoints)[0] == make_record(1)
    assert checkpoints.best() == evaluation(1)


def test_a_version_is_found_by_name_and_by_number(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(make_record(5))
    checkpoints.save(make_record(50))
    assert checkpoints.resolve("latest") == checkpoints.folder(50)
    assert checkpoints.resolve("5") == checkpoints.folder(5)


def test_what_is_not_there_is_refused_with_what_is(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    checkpoints.save(make_record(5))
    with pytest.raises(HeadraceError, match=r"no checkpoint 'best'.*there is: latest, 5"):
        checkpoints.resolve("best")


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    checkpoints = CheckpointDirectory(tmp_path)
    assert load_newest(checkpoints) == (None, [])
    assert checkpoints.best() is None
    with pytest.raises(HeadraceError, match="there is: none"):
        checkpoints.resolve("latest")
