"""``RUN/replay/directory.json``: the totals that must outlive the directory's process.

Written whole or not at all, at most once a second and at drain. What is missing after a kill comes with the
next reports of those who are still there: all totals only rise, and the larger one counts.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.replay.members import DirectoryTotals, LearnerTotals, SamplerTotals

FOLDER = "replay"
FILE_NAME = "directory.json"
SAVE_EVERY_S = 1.0
_FORMAT = 1


class Journal:
    """The file of one run. ``run_dir`` None: nothing is kept. Used by one thread at a time."""

    def __init__(self, run_dir: Path | None, run_id: str, *, clock: Callable[[], float]) -> None:
        self._path = None if run_dir is None else run_dir / FOLDER / FILE_NAME
        self._run_id = run_id
        self._clock = clock
        self._saved: DirectoryTotals | None = None
        self._saved_at = clock() - SAVE_EVERY_S

    def load(self) -> DirectoryTotals:
        """What was saved last; zeros if nothing was, or if it is of another run or can't be read."""
        if self._path is None:
            return DirectoryTotals()
        try:
            document = json.loads(self._path.read_text("utf-8"))
            if document["format"] == _FORMAT and document["run_id"] == self._run_id:
                return _from_document(document)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return DirectoryTotals()

    @property
    def due(self) -> bool:
        """Whether it is time to save again."""
        return self._clock() - self._saved_at >= SAVE_EVERY_S

    def save(self, totals: DirectoryTotals) -> None:
        """Write ``totals`` if they have changed. Survives a kill of the process. Raises OSError."""
        self._saved_at = self._clock()
        if self._path is None or totals == self._saved:
            return
        document = {"format": _FORMAT, "run_id": self._run_id, **dataclasses.asdict(totals)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(f".{FILE_NAME}.partial")
        partial.write_text(json.dumps(document), "utf-8")
        os.replace(partial, self._path)
        self._saved = totals


def _from_document(document: dict[str, Any]) -> DirectoryTotals:
    return DirectoryTotals(
        samplers={name: SamplerTotals(**own) for name, own in document["samplers"].items()},
        learners={name: LearnerTotals(**own) for name, own in document["learners"].items()},
        recent=tuple((float(value), int(length)) for value, length in document["recent"]),
        shards=tuple(document["shards"]),
    )
