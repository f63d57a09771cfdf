"""``RUN/fragments.jsonl``: where each fragment came from and what became of it.

The learner appends one compact line a fragment that is settled; samplers of runs over replay one a fragment
that they store, each in a file of its own (``fragments.<sampler>.jsonl``). ``headrace trace`` reads them.
Files are rotated, so they hold the newest fragments within a bound and don't grow with running time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from headrace import logs
from headrace.types import LANE_EPISODE, LANE_SEED, LANE_STEP, Fragment, FragmentId, PolicyVersion

FILE_NAME = "fragments.jsonl"
_ROTATED = ".1.jsonl"
MAX_BYTES = 64 * 2**20
"""Size at which the file is rotated; one older file is kept."""


class FragmentTrail:
    """Appends fragments of one process; used from one thread. ``writer``: its name, if there are several.

    A full disk is logged once and costs the rest of the trail, never the run.
    """

    def __init__(self, run_dir: Path | None, *, writer: str = "", max_bytes: int = MAX_BYTES) -> None:
        self._folder = run_dir
        self._name = f"fragments.{quote(writer, safe='')}.jsonl" if writer else FILE_NAME
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
        stored: str = "",
    ) -> None:
        """One line: the version it was trained into, why it was dropped, or the shard that stores it.

        ``lag`` is the policy lag at use, in updates.
        """
        if self._folder is None:
            return
        line = json.dumps(
            _describe(fragment, trained_into, lag, dropped, stored), separators=(",", ":")
        ).encode()
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
            self._file = (folder / self._name).open("ab", buffering=0)
            self._size = self._file.tell()
        self._file.write(line)
        self._size += len(line)
        if self._size >= self._max_bytes:
            self.close()
            path = folder / self._name
            path.replace(path.with_name(path.name.removesuffix(".jsonl") + _ROTATED))


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
    paths = sorted(run_dir.glob("fragments*.jsonl"))
    for path in sorted(paths, key=lambda path: not path.name.endswith(_ROTATED)):
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if marker not in line:
                    continue
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # torn by a kill


def _describe(
    fragment: Fragment, trained_into: PolicyVersion | None, lag: int | None, dropped: str, stored: str
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
        "stored": stored,
    }
