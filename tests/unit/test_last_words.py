"""What a process said last, as a sentence for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.local.process import ProcessEnd, last_words


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("", ""),
        ("plain words\n\n", "plain words"),
        ("Traceback ...\nValueError: no\n", "ValueError: no"),
        ('{"event": "lane 0 failed", "level": "error"}\n', "lane 0 failed"),
        ('{"event": "refused", "reason": "port taken", "error": "port taken"}\n', "refused: port taken"),
        ('{"torn": ', '{"torn":'),
        ('{"event": "environment_hung", "details": {"reason": "no step"}}\n', "environment_hung: no step"),
        ("[1]\n", "[1]"),
        ("x" * 2000 + "\n", "x" * 500),
    ],
)
def test_the_last_line_that_says_something(tmp_path: Path, log: str, sentence: str) -> None:
    path = tmp_path / "log"
    path.write_text(log)
    assert last_words(path) == sentence


def test_a_missing_log_says_nothing(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none") == ""


def test_words_before_a_kill_are_not_taken_for_its_reason() -> None:
    assert ProcessEnd("sampler-0", -9, "all is well").reason == "sampler-0 was killed by SIGKILL"
    assert ProcessEnd("sampler-0", 1, "it broke").reason == "sampler-0 ended with exit code 1: it broke"
    assert ProcessEnd("sampler-0", 0, "bye").reason == "sampler-0 ended with exit code 0"
    assert "its environment may have ended" in ProcessEnd("sampler-0", 0, "bye").unasked_reason
