"""Which versions a relay holds, and who reads which. Pure: no wire, no clock. For one thread."""

from __future__ import annotations

from headrace.clients.relaying import WholeVersion
from headrace.types import PolicyVersion


class Shelf:
    """The newest version, and at most one older one that somebody is still reading.

    A reader always begins with the newest version. When a newer one comes, the one before may be read to
    its end unless an older one still is; then its readers are cut off and begin again with the newest.
    So two versions are held at most, and who is slow still gets whole ones: as soon as the older version
    has lost its last reader, all who read the newest at that time may read it to its end.
    """

    def __init__(self) -> None:
        self._newest: _Held | None = None
        self._older: _Held | None = None

    @property
    def newest(self) -> PolicyVersion | None:
        """The version that a reader would begin with."""
        return None if self._newest is None else self._newest.version

    @property
    def nbytes(self) -> int:
        """Bytes of what is held."""
        return sum(held.nbytes for held in (self._newest, self._older) if held is not None)

    def put(self, whole: WholeVersion) -> None:
        """A newer version has come. One that isn't newer changes nothing."""
        before = self._newest
        if before is not None and whole.version <= before.version:
            return
        self._newest = _Held(whole)
        if before is None:
            return
        if before.readers and self._older is None:
            self._older = before
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
        if held is self._older and not held.readers:
            held.drop()
            self._older = None


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
