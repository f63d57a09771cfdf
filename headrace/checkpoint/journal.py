"""``RUN/paramserver/newest-{0,1}``: the newest version between two checkpoints, if it is small.

Two files are overwritten in turn, without flushing, so that a server that was killed goes on from the
last version it published even if the learner was killed too. Larger versions rely on the learner
(which publishes again to the new server) and on the checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from headrace.checkpoint.record import VersionRecord, from_manifest, to_manifest
from headrace.errors import CodecError

FOLDER = "paramserver"
MAX_BYTES = 8 * 2**20
"""Versions whose blobs are larger than this are not kept here."""

_MAGIC = b"headrace newest\n"
_LENGTH_BYTES = 8
_HEAD_BYTES = len(_MAGIC) + _LENGTH_BYTES + hashlib.sha256().digest_size


class Journal:
    """The newest small version. Invariant: while one file is being written the other one is whole.

    Used by one thread at a time.
    """

    def __init__(self, run_dir: Path, *, max_bytes: int = MAX_BYTES) -> None:
        (run_dir / FOLDER).mkdir(parents=True, exist_ok=True)
        self._paths = _paths(run_dir)
        self._max_bytes = max_bytes
        self._next = 0

    def read(self) -> VersionRecord | None:
        """The newest whole version; None if there is none. The next write spares its file."""
        slot, record = _newest(self._paths)
        if record is not None:
            self._next = 1 - slot
        return record

    def write(self, record: VersionRecord) -> bool:
        """Keep ``record``; false if it is too large. Raises OSError; then the one before is still whole."""
        if record.nbytes > self._max_bytes:
            return False
        data = _encode(record)
        descriptor = os.open(self._paths[self._next], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.pwrite(descriptor, data, 0) != len(data):
                raise OSError("the newest version could not be written whole: is the disk full?")
        finally:
            os.close(descriptor)
        self._next = 1 - self._next
        return True


def read_journal(run_dir: Path) -> VersionRecord | None:
    """The newest whole version of a run's journal, for readers only; None if there is none."""
    _slot, record = _newest(_paths(run_dir))
    return record


def _paths(run_dir: Path) -> tuple[Path, Path]:
    return run_dir / FOLDER / "newest-0", run_dir / FOLDER / "newest-1"


def _newest(paths: tuple[Path, Path]) -> tuple[int, VersionRecord | None]:
    """The newest whole version with the number of its file."""
    whole = [(slot, record) for slot, path in enumerate(paths) if (record := _read(path)) is not None]
    return max(whole, key=lambda found: found[1].version, default=(0, None))


def _encode(record: VersionRecord) -> bytes:
    manifest = json.dumps(to_manifest(record), allow_nan=False).encode()
    head = _MAGIC + len(manifest).to_bytes(_LENGTH_BYTES, "little") + hashlib.sha256(manifest).digest()
    return b"".join([head, manifest, *(blob.data for blob in record.blobs.values())])


def _read(path: Path) -> VersionRecord | None:
    """The version in one file; None if it is missing, torn or altered."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD_BYTES or not data.startswith(_MAGIC):
        return None
    length = int.from_bytes(data[len(_MAGIC) : len(_MAGIC) + _LENGTH_BYTES], "little")
    manifest_bytes = data[_HEAD_BYTES : _HEAD_BYTES + length]
    if hashlib.sha256(manifest_bytes).digest() != data[len(_MAGIC) + _LENGTH_BYTES : _HEAD_BYTES]:
        return None
    manifest = json.loads(manifest_bytes)
    blobs, offset = {}, _HEAD_BYTES + length
    for name, blob in manifest["blobs"].items():
        blobs[name] = data[offset : offset + blob["nbytes"]]
        offset += blob["nbytes"]
    try:
        return from_manifest(manifest, blobs)
    except CodecError:
        return None
