"""Groups of learners that reduce gradients among themselves: who is in one, and when it is put together anew.

A group changes only where no member is in the middle of an update: at the close of its round, or when it is
broken and everybody waits. So all members of a generation have taken part in exactly the same steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class Replicas:
    """The learners of one group. Pure and not thread-safe: time is told.

    Invariants: ``generation`` rises with every change of ``ranks``; members of the generation before keep
    their order and come first, so that the first one has the state that newcomers need.
    """

    def __init__(self, expected: Iterable[str], *, generation: int, deadline_s: float | None) -> None:
        """``expected`` learners are waited for, until the first group has come together or ``deadline_s``
        seconds have passed since somebody asked for one. Generations begin above ``generation``."""
        self._awaited = set(expected)
        self._deadline_s = deadline_s
        self._here: set[str] = set()
        self._asking: set[str] = set()
        self._broken = False
        self._since: float | None = None
        self.generation = generation
        self.ranks: tuple[str, ...] = ()
        """Members of the present generation, by rank; empty: there is none."""

    def join(self, member: str) -> None:
        """A learner is here. It is in no group before it has asked."""
        self._awaited.discard(member)
        self._here.add(member)

    def leave(self, member: str, now: float) -> None:
        """A learner is gone. Without its first member a group can't go on."""
        self._here.discard(member)
        self._asking.discard(member)
        if self.ranks and member == self.ranks[0]:
            self._break(now)

    def ask(self, member: str, generation: int, now: float) -> None:
        """A learner waits for a group; ``generation`` is the one that it says is broken, 0: it had none.

        Where a member has none any more it was started again or has lost its connection: that breaks its
        group too.
        """
        self._asking.add(member)
        if member in self.ranks and generation in (0, self.generation):
            self._break(now)
        elif self._since is None:
            self._since = now

    def is_due(self, offered: Collection[str], now: float) -> bool:
        """Whether a group is to be formed now, as there is none or it is broken.

        ``offered`` have brought what they did in the present generation. It is time when everybody waits, or
        nobody is waited for any longer.
        """
        waiting = self._waiting(offered)
        if not waiting or not (self._broken or not self.ranks):
            return False
        return waiting >= self._here | self._awaited or self._is_overdue(now)

    def is_changing(self) -> bool:
        """Whether the next generation will have other members, now that a round has closed."""
        return bool(self._asking) or not self._here.issuperset(self.ranks)

    def form(self, offered: Collection[str]) -> tuple[str, ...]:
        """Put together all who wait; returns them by rank."""
        waiting = self._waiting(offered)
        survivors = [member for member in self.ranks if member in waiting]
        newcomers = sorted(waiting.difference(survivors))
        self.ranks = (*survivors, *newcomers)
        self.generation += 1
        self._asking.clear()
        self._awaited.clear()
        self._broken, self._since = False, None
        return self.ranks

    def _waiting(self, offered: Collection[str]) -> set[str]:
        return self._asking | {member for member in self.ranks if member in offered and member in self._here}

    def _is_overdue(self, now: float) -> bool:
        if self._deadline_s is None or self._since is None:
            return False
        return now - self._since >= self._deadline_s

    def _break(self, now: float) -> None:
        self._broken = True
        self._since = now if self._since is None else self._since
