"""``RUN/checkpoints``: one folder a version, complete or not there at all.

A folder is written under another name, every file is flushed to the disk, ``DONE`` (with the hash of
the manifest, which has the hashes of the rest) last, then it is renamed: whatever happens in between,
a reader sees the old state or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.checkpoint.record import (
    ACTING,
    TRAINING,
    VersionRecord,
    evaluation_from_json,
    evaluation_to_json,
    from_manifest,
    to_manifest,
)
from headrace.errors import CodecError, HeadraceError
from headrace.types import Evaluation

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
DONE = "DONE"
EVALUATION = "evaluation.json"
LATEST = "latest"
BEST = "best"
_PARTIAL = ".partial-"
_REPLACED = ".replaced-"


class CheckpointDirectory:
    """The checkpoints of one run. One writer at a time; any number of readers, in other processes too.

    ``latest`` and ``best`` are symbolic links, replaced atomically.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FOLDER

    def numbers(self) -> list[int]:
        """Version numbers of the complete checkpoints, ascending."""
        if not self.path.is_dir():
            return []
        return sorted(
            int(entry.name)
            for entry in self.path.iterdir()
            if _is_number(entry.name) and (entry / DONE).is_file()
        )

    def folder(self, number: int) -> Path:
        """Where the checkpoint of a version number is, or would be."""
        return self.path / f"{number:010d}"

    def resolve(self, which: str) -> Path:
        """Folder of ``best``, ``latest`` or a version number. Raises HeadraceError if it isn't there."""
        there = self.numbers()
        if which == LATEST and there:
            return self.folder(there[-1])
        if which == BEST and (self.path / BEST / DONE).is_file():
            return (self.path / BEST).resolve()
        if which.isdecimal() and int(which) in there:
            return self.folder(int(which))
        names = [
            name for name, is_there in ((BEST, (self.path / BEST).exists()), (LATEST, there)) if is_there
        ]
        known = ", ".join([*names, *map(str, there)])
        raise HeadraceError(f"no checkpoint {which!r} in {self.path}; there is: {known or 'none'}")

    def load(self, folder: Path) -> VersionRecord:
        """Read one checkpoint. Raises CodecError if it is incomplete or was altered."""
        try:
            manifest = _read_manifest(folder)
            names = [name for name in (ACTING, TRAINING) if name in manifest["blobs"]]
            blobs = {name: (folder / _file_name(name)).read_bytes() for name in names}
            return from_manifest(manifest, blobs)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CodecError(f"checkpoint {folder} can't be read: {error}") from error
        except CodecError as error:
            raise CodecError(f"checkpoint {folder}: {error}") from error

    def load_newest(self, on_skip: Callable[[int, str], None]) -> VersionRecord | None:
        """The newest checkpoint that is whole; None if there is none.

        ``on_skip(number, sentence)`` hears of each newer one that had to be passed over.
        """
        for number in reversed(self.numbers()):
            try:
                return self.load(self.folder(number))
            except CodecError as error:
                on_skip(number, str(error))
        return None

    def save(self, record: VersionRecord) -> None:
        """Write one checkpoint and point ``latest`` at it, if it is the newest.

        Does nothing if that version is there already with all the blobs of ``record``. Raises OSError
        (disk full, not writable); then everything that was complete before still is.
        """
        final = self.folder(record.version.number)
        if self._holds(final, record):
            return
        self.path.mkdir(parents=True, exist_ok=True)
        partial = self.path / f"{_PARTIAL}{final.name}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            for name, blob in record.blobs.items():
                _write_durably(partial / _file_name(name), blob.data)
            manifest = _json_bytes(to_manifest(record))
            _write_durably(partial / MANIFEST, manifest)
            _write_durably(partial / DONE, hashlib.sha256(manifest).hexdigest().encode() + b"\n")
            _sync_folder(partial)
            self._put_in_place(partial, final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _sync_folder(self.path)
        if self.numbers()[-1] == record.version.number:
            self._point(LATEST, final)

    def mark_best(self, evaluation: Evaluation) -> None:
        """Point ``best`` at the checkpoint of the evaluated version, which must be there."""
        folder = self.folder(evaluation.version.number)
        if not (folder / DONE).is_file():
            raise HeadraceError(f"{folder} is not there, so it can't become the best checkpoint")
        partial = folder / f"{_PARTIAL}{EVALUATION}"
        _write_durably(partial, _json_bytes(evaluation_to_json(evaluation)))
        partial.replace(folder / EVALUATION)
        _sync_folder(folder)
        self._point(BEST, folder)
        _sync_folder(self.path)

    def best(self) -> Evaluation | None:
        """The evaluation of checkpoint ``best``; None if there is none or it can't be read."""
        try:
            raw = json.loads((self.path / BEST / EVALUATION).read_text("utf-8"))
            return evaluation_from_json(raw)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def prune(self, keep: int) -> None:
        """Delete all but the newest ``keep`` checkpoints and the best."""
        best = (self.path / BEST).resolve().name
        for number in self.numbers()[:-keep]:
            folder = self.folder(number)
            if folder.name != best:
                # Without DONE it is no checkpoint any more, however far the deletion gets.
                (folder / DONE).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)

    def clean(self) -> None:
        """Remove what a killed writer left behind. For the writer, at its start."""
        if not self.path.is_dir():
            return
        for entry in self.path.glob(f"{_REPLACED}*"):
            final = self.path / entry.name.removeprefix(_REPLACED)
            if not (final / DONE).is_file():
                shutil.rmtree(final, ignore_errors=True)
                entry.rename(final)
        for entry in (*self.path.glob(f"{_PARTIAL}*"), *self.path.glob(f"{_REPLACED}*")):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        for entry in self.path.iterdir():
            if _is_number(entry.name) and not (entry / DONE).is_file():
                shutil.rmtree(entry, ignore_errors=True)
        for number in self.numbers()[-1:]:
            self._point(LATEST, self.folder(number))

    def _holds(self, folder: Path, record: VersionRecord) -> bool:
        try:
            blobs = _read_manifest(folder)["blobs"]
            return all(blobs[name]["sha256"] == blob.sha256 for name, blob in record.blobs.items())
        except (OSError, ValueError, KeyError, TypeError, CodecError):
            return False

    def _put_in_place(self, partial: Path, final: Path) -> None:
        if not final.exists():
            partial.rename(final)
            return
        # The same version with more blobs, or a damaged one. A kill between the two renames is
        # mended by clean().
        if (final / EVALUATION).is_file():
            shutil.copy2(final / EVALUATION, partial / EVALUATION)
        replaced = self.path / f"{_REPLACED}{final.name}"
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
        partial.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)

    def _point(self, link: str, folder: Path) -> None:
        partial = self.path / f"{_PARTIAL}{link}"
        partial.unlink(missing_ok=True)
        partial.symlink_to(folder.name)
        partial.replace(self.path / link)


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Raises OSError, ValueError, or CodecError if it is not the one that was written."""
    data = (folder / MANIFEST).read_bytes()
    if (folder / DONE).read_text("utf-8").strip() != hashlib.sha256(data).hexdigest():
        raise CodecError(f"its {MANIFEST} was altered")
    manifest: dict[str, Any] = json.loads(data)
    return manifest


def _is_number(name: str) -> bool:
    return name.isdecimal() and name == f"{int(name):010d}"


def _file_name(blob: str) -> str:
    return f"{blob}.safetensors"


def _json_bytes(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
