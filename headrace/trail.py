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

    A full disk is logged once and costs the rest of the trail, never the run.
    """

    def __init__(self, run_dir: Path | None, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder = run_dir
        self._max_bytes = max_bytes
        self._logger = logs.get_logger("headrace.trail")
        self._file: IO[bytes] | None = None
        self._size = 0

    def append(
        self,
        fragment: Fragment,
        *,
        trained_into: PolicyVersion | None = None,
        lag: int | None = None,
        dropped: str = "",
    ) -> None:
        """One line. Either the version it was trained into, or the reason for which it was dropped.

        ``lag`` is the policy lag at use, in updates.
        """
        if self._folder is None:
            return
        line = json.dumps(_describe(fragment, trained_into, lag, dropped), separators=(",", ":")).encode()
        try:
            self._write(self._folder, line + b"\n")
        except OSError as error:
            self._folder, self._file = None, None
            self._logger.warning("the fragment trail could not be written; it ends here", error=str(error))

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, folder: Path, line: bytes) -> None:
        if self._file is None:
            # Unbuffered: one write a line, so a kill loses nothing that was appended.
            self._file = (folder / FILE_NAME).open("ab", buffering=0)
            self._size = self._file.tell()
        self._file.write(line)
        self._size += len(line)
        if self._size >= self._max_bytes:
            self.close()
            (folder / FILE_NAME).replace(folder / ROTATED_NAME)


def find(run_dir: Path, fragment_id: FragmentId) -> dict[str, Any] | None:
    """The newest line about one fragment; None if the trail doesn't have it (any more)."""
    wanted = str(fragment_id)
    found = None
    for entry in _entries(run_dir, f'"id":"{wanted}"'):
        if entry.get("id") == wanted:
            found = entry
    return found


def _entries(run_dir: Path, marker: str) -> Iterator[dict[str, Any]]:
    """Entries of the lines that contain ``marker``, oldest first."""
    for name in (ROTATED_NAME, FILE_NAME):
        path = run_dir / name
        if not path.exists():
            continue
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if marker not in line:
                    continue
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # torn by a kill


def _describe(
    fragment: Fragment, trained_into: PolicyVersion | None, lag: int | None, dropped: str
) -> dict[str, Any]:
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
        "trained_into": None if trained_into is None else str(trained_into),
        "lag": lag,
        "dropped": dropped,
    }
