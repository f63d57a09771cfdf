"""A few numbers in a file that are whole at any moment, also after ``kill -9`` of whoever writes them.

The file is a shared memory map, so an update is a write to memory (a few microseconds) and the kernel keeps
it when the process dies. Updates go to two slots in turn, each with a running number and a checksum: whatever
moment a writer is killed at or a reader looks at, one slot is whole.

Layout: 8 bytes of magic; at 512 and 1024 a slot of little-endian int64: number, the values, CRC-32 of all
before.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

FILE_BYTES = 2048
_SLOT_OFFSETS = (512, 1024)
_CRC = struct.Struct("<q")
_READ_ATTEMPTS = 5


class SlotFile:
    """Writes ``num_values`` int64 at a time. Not thread-safe; one writer a file."""

    def __init__(self, path: Path, magic: bytes, num_values: int) -> None:
        """Open an existing file; what an earlier writer left is replaced by the first :meth:`write`."""
        with path.open("r+b") as file:
            file.truncate(FILE_BYTES)
            self._memory = mmap.mmap(file.fileno(), FILE_BYTES)
        self._memory[: len(magic)] = magic
        self._body = struct.Struct(f"<{1 + num_values}q")
        newest = read_slots(path, magic, num_values)
        self._number = 0 if newest is None else newest[0]

    def write(self, values: Sequence[int]) -> None:
        """Replace the numbers."""
        self._number += 1
        body = self._body.pack(self._number, *values)
        begin = _SLOT_OFFSETS[self._number & 1]
        self._memory[begin : begin + self._body.size + _CRC.size] = body + _CRC.pack(zlib.crc32(body))

    def close(self) -> None:
        """Let go of the file; it keeps what was written."""
        self._memory.close()


def read_slots(path: Path, magic: bytes, num_values: int) -> tuple[int, ...] | None:
    """The running number and the newest values; None if nothing was ever written."""
    body = struct.Struct(f"<{1 + num_values}q")
    for _ in range(_READ_ATTEMPTS):
        raw = path.read_bytes()
        if len(raw) < FILE_BYTES or not raw.startswith(magic):
            return None
        slots = [found for offset in _SLOT_OFFSETS if (found := _slot(raw, offset, body)) is not None]
        if slots:
            return max(slots)
    return None


def _slot(raw: bytes, offset: int, body: struct.Struct) -> tuple[int, ...] | None:
    """The numbers of a slot, None if it is torn or was never written."""
    content = raw[offset : offset + body.size]
    (crc,) = _CRC.unpack_from(raw, offset + body.size)
    numbers: tuple[int, ...] = body.unpack(content)
    return numbers if numbers[0] > 0 and crc == zlib.crc32(content) else None
