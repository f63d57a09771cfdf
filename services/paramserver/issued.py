"""``RUN/paramserver/issued``: the highest version number ever given out, in a file of one line.

Rewritten in place before each version becomes visible, so that no number is ever given out twice,
whenever the process is killed. It is flushed to the disk with each checkpoint only: a kill of the
process loses nothing of what was written, and a power cut leaves the checkpoints.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.checkpoint.journal import FOLDER
from headrace.errors import ConfigurationError
from headrace.types import PolicyVersion

FILE_NAME = "issued"
_NONE = -1
_LOCK_PATIENCE_S = 5.0  # a killed predecessor may take a moment to vanish


@dataclass(frozen=True, slots=True)
class Issued:
    """``epoch`` of the last server that started; ``newest`` version ever issued (None: none yet)."""

    epoch: int
    newest: PolicyVersion | None


class IssuedFile:
    """The file, locked: a second server of the same run is refused. One thread writes at a time."""

    def __init__(self, run_dir: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        folder = run_dir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(self._descriptor, run_dir, sleep)
        except BaseException:
            os.close(self._descriptor)
            raise

    def read(self) -> Issued | None:
        """What was written last; None if nothing was, or if it was altered."""
        words = os.pread(self._descriptor, 4096, 0).split()
        if len(words) != 4 or words[3] != _checksum(b" ".join(words[:3])):
            return None
        epoch, newest_epoch, newest_number = (int(word) for word in words[:3])
        none = newest_number == _NONE
        return Issued(epoch, None if none else PolicyVersion(newest_epoch, newest_number))

    def write(self, issued: Issued) -> None:
        """Overwrite it. Survives a kill of the process from here on. Raises OSError."""
        newest = issued.newest or PolicyVersion(0, _NONE)
        text = f"{issued.epoch:020d} {newest.epoch:020d} {newest.number:020d}".encode()
        line = text + b" " + _checksum(text) + b"\n"
        if os.pwrite(self._descriptor, line, 0) != len(line):
            raise OSError(f"the number of a version could not be written to {FILE_NAME}")

    def sync(self) -> None:
        """Flush to the disk. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close and unlock."""
        os.close(self._descriptor)


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)


def _lock(descriptor: int, run_dir: Path, sleep: Callable[[float], None]) -> None:
    waited_s = 0.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if waited_s >= _LOCK_PATIENCE_S:
                raise ConfigurationError(
                    [f"--run-dir: another paramserver is running in {run_dir}; a run has one."]
                ) from error
            sleep(0.1)
            waited_s += 0.1
