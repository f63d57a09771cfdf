"""What a collector gathers reaches its files; files that can't be written are named, and nothing breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from headrace.local.collector import Collector
from headrace.local.recorder import CollectorThread
from headrace.local.row import read_rows
from headrace.local.tensorboard import TensorBoard

FULL = Path("/dev/full")


def _thread(tmp_path: Path, path: Path, tensorboard: Path | None) -> CollectorThread:
    collector = Collector(
        run_dir=tmp_path,
        host="127.0.0.1",
        read_view=lambda: None,
        target_return=None,
        evaluated=False,
        with_workers=False,
    )
    return CollectorThread(collector, path=path, tensorboard=tensorboard, interval_s=3600.0)


def _record(thread: CollectorThread) -> None:
    thread.start()
    thread.stop()
    thread.record()
    thread.record()
    thread.close()


def test_rows_and_points_are_written(tmp_path: Path) -> None:
    thread = _thread(tmp_path, tmp_path / "metrics.jsonl", tmp_path / "tb")
    _record(thread)
    assert thread.problems == {}
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 2
    (file,) = (tmp_path / "tb").iterdir()
    first, *points = EventFileLoader(str(file)).Load()
    assert first.file_version == "brain.Event:2"
    assert [{value.tag for value in point.summary.value} >= {"run/updates"} for point in points] == [True] * 2


def test_points_keep_their_step_and_leave_out_what_is_not_finite(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.write({"a": 1.5, "b": float("nan"), "c": None}, step=64)
    board.close()
    (file,) = tmp_path.iterdir()
    _version, point = EventFileLoader(str(file)).Load()
    assert (point.step, [value.tag for value in point.summary.value]) == (64, ["a"])


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_what_cannot_be_written_is_noted_without_a_traceback(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tb").write_text("a file where the folder should be")
    thread = _thread(tmp_path, FULL, tmp_path / "tb")
    _record(thread)
    assert set(thread.problems) == {"full", "tb"}
    assert "No space left on device" in thread.problems["full"]
    assert "Traceback" not in capfd.readouterr().err
