"""The event log: whole lines from many processes, bounded, and never a reason to fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.events import FILE_NAME, PER_KIND_AND_MINUTE, EventLog, read_events

_WRITER = """
import sys
from pathlib import Path
from headrace.events import EventLog
log = EventLog(Path(sys.argv[1]), sys.argv[2])
for number in range(50):
    log.emit("test", number=number, padding="x" * 500)
"""


def test_lines_of_several_processes_never_mix(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path), f"writer-{index}"], stderr=subprocess.DEVNULL
        )
        for index in range(3)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    events = read_events(tmp_path)
    assert len(events) == len((tmp_path / FILE_NAME).read_text().splitlines()) == 150
    for index in range(3):
        numbers = [event["number"] for event in events if event["service"] == f"writer-{index}"]
        assert numbers == list(range(50))


def test_a_flood_of_one_kind_is_cut_and_counted(tmp_path: Path) -> None:
    now = [0.0]
    log = EventLog(tmp_path, "sampler-0", clock=lambda: now[0])
    for _ in range(PER_KIND_AND_MINUTE + 7):
        log.emit("drop", reason="stale")
    log.emit("restart", reason="another kind has its own limit")
    now[0] = 61.0
    log.emit("drop", reason="stale")
    events = read_events(tmp_path)
    drops = [event for event in events if event["kind"] == "drop"]
    assert len(drops) == PER_KIND_AND_MINUTE + 1
    assert drops[-1]["suppressed"] == 7
    assert sum(event["kind"] == "restart" for event in events) == 1


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    EventLog(tmp_path, "learner-0").emit("start")
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"time": 1, "kind": "sta')
    assert [event["kind"] for event in read_events(tmp_path)] == ["start"]


def test_without_a_folder_or_with_a_vanished_one_nothing_fails(tmp_path: Path) -> None:
    EventLog(None, "sampler-0").emit("start")
    EventLog(tmp_path / "gone", "sampler-0").emit("start")
    assert read_events(tmp_path / "gone") == []
