"""``RUN/fragments.jsonl``: where each settled fragment came from and what became of it.

The learner appends one compact line a fragment; ``headrace trace`` reads them. The file is
rotated, so it holds the newest fragments within a bound and doesn't grow with running time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from headrace import logs
from headrace.types import LANE_EPISODE, LANE_SEED, LANE_STEP, Fragment, FragmentId, PolicyVersion

FILE_NAME = "fragments.jsonl"
ROTATED_NAME = "fragments.1.jsonl"
MAX_BYTES = 64 * 2**20
"""Size at which the file is rotated; one older file is kept."""


class FragmentTrail:
    """Appends settled fragments of one learner process; used from one thread.

    Lines are buffered until :meth:`flush`, which the learner calls once an update. A full disk
    is logged once and costs the trail, never the run.
    """

    def __init__(self, run_dir: Path | None, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder = run_dir
        self._max_bytes = max_bytes
        self._logger = logs.get_logger("headrace.trail")
        self._file: IO[str] | None = None
        self._broken = run_dir is None

    def append(
        self, fragment: Fragment, *, outcome: str, reason: str = "", version: PolicyVersion | None = None
    ) -> None:
        """One line: ``outcome`` is ``trained`` (into ``version``) or ``dropped`` (for ``reason``)."""
        if self._broken:
            return
        line = json.dumps(_describe(fragment, outcome, reason, version), separators=(",", ":"))
        try:
            self._open().write(line + "\n")
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Bring the lines so far to the file, and rotate it if it is full."""
        if self._file is None:
            return
        try:
            self._file.flush()
            if self._file.tell() >= self._max_bytes and self._folder is not None:
                self._file.close()
                self._file = None
                (self._folder / FILE_NAME).replace(self._folder / ROTATED_NAME)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[str]:
        if self._file is None:
            assert self._folder is not None
            self._file = (self._folder / FILE_NAME).open("a", encoding="utf-8")
        return self._file

    def _give_up(self, error: OSError) -> None:
        self._broken, self._file = True, None
        self._logger.warning("the fragment trail could not be written; it ends here", error=str(error))


def find(run_dir: Path, fragment_id: FragmentId) -> dict[str, Any] | None:
    """The newest line about one fragment; None if the trail doesn't have it (any more)."""
    wanted = str(fragment_id)
    found = None
    for entry in _lines(run_dir):
        if entry.get("id") == wanted:
            found = entry
    return found


def _lines(run_dir: Path) -> Iterator[dict[str, Any]]:
    for name in (ROTATED_NAME, FILE_NAME):
        path = run_dir / name
        if not path.exists():
            continue
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # torn by a kill


def _describe(fragment: Fragment, outcome: str, reason: str, version: PolicyVersion | None) -> dict[str, Any]:
    columns = fragment.columns
    return {
        "id": str(fragment.id),
        "policy_version": str(fragment.policy_version),
        "config_digest": fragment.config_digest,
        "num_steps": fragment.num_steps,
        "num_transitions": fragment.num_transitions,
        "lane_seed": columns[LANE_SEED].tolist() if LANE_SEED in columns else [],
        "lane_episode": columns[LANE_EPISODE].tolist() if LANE_EPISODE in columns else [],
        "lane_step": columns[LANE_STEP].tolist() if LANE_STEP in columns else [],
        "outcome": outcome,
        "reason": reason,
        "version": None if version is None else str(version),
    }
