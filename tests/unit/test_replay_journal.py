"""The directory's totals on disk: whole or not at all, of this run, seldom."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.replay.members import DirectoryTotals, LearnerTotals, SamplerTotals
from services.replay.journal import FILE_NAME, FOLDER, SAVE_EVERY_S, Journal

TOTALS = DirectoryTotals(
    samplers={"sampler-0": SamplerTotals(2, 10, 3, 40, 5)},
    learners={"learner-0": LearnerTotals(1, 7, 20)},
    recent=((1.5, 9), (-2.0, 4)),
    shards=("cold-0", "sampler-0"),
)


def make_journal(run_dir: Path | None, run_id: str = "run-1", now: float = 0.0) -> Journal:
    return Journal(run_dir, run_id, clock=lambda: now)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    make_journal(tmp_path).save(TOTALS)
    assert make_journal(tmp_path).load() == TOTALS
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 2, "run_id": "run-1"}', "\xff"])
def test_a_file_that_makes_no_sense_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / FILE_NAME).write_text(text, "latin-1")
    assert make_journal(tmp_path).load() == DirectoryTotals()


def test_totals_of_another_run_are_not_taken_up(tmp_path: Path) -> None:
    make_journal(tmp_path).save(TOTALS)
    assert make_journal(tmp_path, run_id="run-2").load() == DirectoryTotals()


def test_it_is_due_once_a_second_and_unchanged_totals_are_not_written_again(tmp_path: Path) -> None:
    now = 0.0
    journal = Journal(tmp_path, "run-1", clock=lambda: now)
    assert journal.due
    journal.save(TOTALS)
    now = SAVE_EVERY_S - 0.01
    assert not journal.due
    now = SAVE_EVERY_S
    assert journal.due
    (tmp_path / FOLDER / FILE_NAME).unlink()
    journal.save(TOTALS)
    assert make_journal(tmp_path).load() == DirectoryTotals()


def test_without_a_folder_nothing_is_kept() -> None:
    journal = make_journal(None)
    journal.save(TOTALS)
    assert journal.load() == DirectoryTotals()
