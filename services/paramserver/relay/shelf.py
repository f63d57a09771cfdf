"""Which versions a relay holds, and who reads which. Pure: no wire, no clock. For one thread."""

from __future__ import annotations

from headrace.clients.relaying import WholeVersion
from headrace.types import PolicyVersion

VERSIONS_HELD = 4
"""How many versions a relay has in memory at most: the newest, and older ones that somebody still reads."""


class Shelf:
    """The newest version, and a few older ones that somebody is still reading.

    A reader always begins with the newest version. When a newer one comes, the one before may be read to
    its end if there is a place for it among the older ones; otherwise its readers are cut off and begin
    again with the newest. So memory is bounded, and who is slow still gets whole ones: as soon as an
    older version has lost its last reader, all who read the newest at that time may read it to its end.
    There is more than one place because one watcher that reads next to nothing would otherwise keep it
    from all who are only slower than versions come.
    """

    def __init__(self, limit: int = VERSIONS_HELD) -> None:
        """``limit``: versions held at most, at least 2."""
        self._limit = limit
        self._newest: _Held | None = None
        self._older: list[_Held] = []

    @property
    def newest(self) -> PolicyVersion | None:
        """The version that a reader would begin with."""
        return None if self._newest is None else self._newest.version

    @property
    def nbytes(self) -> int:
        """Bytes of what is held."""
        newest = 0 if self._newest is None else self._newest.nbytes
        return newest + sum(held.nbytes for held in self._older)

    def put(self, whole: WholeVersion) -> None:
        """A newer version has come. One that isn't newer changes nothing."""
        before = self._newest
        if before is not None and whole.version <= before.version:
            return
        self._newest = _Held(whole)
        if before is None:
            return
        if before.readers and len(self._older) < self._limit - 1:
            self._older.append(before)
        else:
            before.drop()

    def read(self) -> Reading:
        """Begin to read the newest version. ValueError if there is none."""
        if self._newest is None:
            raise ValueError("there is nothing on the shelf")
        self._newest.readers += 1
        return Reading(self, self._newest)

    def _left(self, held: _Held) -> None:
        held.readers -= 1
        if held in self._older and not held.readers:
            held.drop()
            self._older.remove(held)


class Reading:
    """One reader's way through one version. Close it, or the version is never let go."""

    def __init__(self, shelf: Shelf, held: _Held) -> None:
        self._shelf = shelf
        self._held = held
        self._next = 0
        self._closed = False

    @property
    def version(self) -> PolicyVersion:
        """What is being read."""
        return self._held.version

    @property
    def whole(self) -> bool:
        """Whether every message was read."""
        return self._next == self._held.count

    def next(self) -> bytes | None:
        """The next message; None at the end, or where the reader was cut off (:attr:`whole` says which)."""
        if self._next >= len(self._held.messages):
            return None
        self._next += 1
        return self._held.messages[self._next - 1]

    def close(self) -> None:
        """The reader is done, or gone. Idempotent."""
        if not self._closed:
            self._closed = True
            self._shelf._left(self._held)


class _Held:
    """A version on the shelf. Dropped, it is empty, whoever still knows it: that is what bounds memory."""

    def __init__(self, whole: WholeVersion) -> None:
        self.version = whole.version
        self.messages = whole.messages
        self.count = len(whole.messages)
        self.nbytes = whole.nbytes
        self.readers = 0

    def drop(self) -> None:
        self.messages = ()
        self.nbytes = 0
