"""Fragments that wait to be trained on, the oldest policy version first."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from headrace.types import Fragment
from services.learner.settlement import Entry, IncarnationBook


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A fragment in memory: its bytes, the stream that brought it, where its account is kept.

    ``version`` is its policy version's number, made never to fall within an incarnation, so that
    order by version is order by sequence there.
    """

    fragment: Fragment
    nbytes: int
    token: int
    book: IncarnationBook
    entry: Entry
    version: int


class FragmentBuffer:
    """Held fragments, ordered by version, then by arrival. Bounded by credit, not here. Not thread-safe."""

    def __init__(self) -> None:
        self._held: list[Held] = []

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: Held) -> None:
        """Put one in."""
        insort(self._held, held, key=_version)

    def oldest(self) -> Held | None:
        """The one to be used next; None: empty."""
        return self._held[0] if self._held else None

    def pop(self, count: int = 1) -> list[Held]:
        """Take out the ``count`` oldest (or all there are)."""
        popped = self._held[:count]
        del self._held[:count]
        return popped


def _version(held: Held) -> int:
    return held.version
