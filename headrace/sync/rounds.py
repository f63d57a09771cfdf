"""Rounds: whose contributions go into one version together. One rule for sync, soft_sync and async.

A round opens with its first contribution. It closes once ``quorum`` parties have contributed, or
``window_s`` seconds after it opened; sync is a quorum of all and no window, async a quorum of one. A party
is one learner, or a group of learners that reduce their gradients among themselves and count as one. What
comes after the close opens the next round.

Who takes part is who is connected: a learner that goes leaves its round at once, with what it has brought.
Parties that are expected and were never seen are waited for too. Once ``deadline_s`` has closed a round
without a party, nobody waits for it before it has contributed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

COMPLETE, WINDOW, DEADLINE, ENDED = "complete", "window", "deadline", "ended"
CLOSED_BY = (COMPLETE, WINDOW, DEADLINE, ENDED)


@dataclass(frozen=True, slots=True)
class RoundPolicy:
    """When a round closes. None: all parties; no window; no deadline. Times in seconds from its opening."""

    quorum: int | None = None
    window_s: float | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """A round that has closed: whose contributions are in it, sorted, why, and how long it was open."""

    members: tuple[str, ...]
    reason: str
    open_s: float


class Rounds:
    """Members, parties and what has been offered in the open round. Not thread-safe.

    Invariants: a member is in at most one offer; every closing is of whole parties and not empty.
    """

    def __init__(self, policy: RoundPolicy, *, expected: Iterable[str] = ()) -> None:
        """``expected``: parties that will come; a learner by itself is a party of its own name."""
        self._policy = policy
        self._awaited = set(expected)
        self._missing: set[str] = set()  # parties that a deadline has passed over, and nobody waits for
        self._party_of: dict[str, str] = {}
        self._offered: set[str] = set()
        self._opened_at: float | None = None

    @property
    def members(self) -> tuple[str, ...]:
        """Who is here, sorted."""
        return tuple(sorted(self._party_of))

    @property
    def offered(self) -> frozenset[str]:
        """Who has contributed to the round that comes next."""
        return frozenset(self._offered)

    @property
    def is_open(self) -> bool:
        """Whether anybody has contributed to the round that comes next."""
        return self._opened_at is not None

    def join(self, member: str, *, party: str | None = None) -> None:
        """A member is here, in ``party`` (None: one of its own). Again: it changes its party."""
        self._party_of[member] = member if party is None else party
        self._missing.intersection_update(self._party_of.values())
        self._awaited.discard(self._party_of[member])

    def leave(self, member: str) -> bool:
        """A member is gone. Returns whether it had contributed to the open round: that is void."""
        self._party_of.pop(member, None)
        self._missing.intersection_update(self._party_of.values())
        return self._withdraw(member)

    def offer(self, member: str, now: float) -> None:
        """A member contributes. ValueError if it is not here or already has."""
        if member not in self._party_of or member in self._offered:
            raise ValueError(f"{member} can't contribute to this round")
        self._offered.add(member)
        self._missing.discard(self._party_of[member])
        if self._opened_at is None:
            self._opened_at = now

    def close(self, now: float) -> Closing | None:
        """Close the round if it is time; None: it stays open, or there is none."""
        if self._opened_at is None:
            return None
        ready, policy, here = self._ready(), self._policy, set(self._party_of.values())
        parties = len(here - self._missing) + len(self._awaited)
        quorum = parties if policy.quorum is None else min(policy.quorum, parties)
        reason = COMPLETE if len(ready) >= max(1, quorum) else self._overdue(now)
        if not reason or not ready:
            return None
        if reason == DEADLINE:
            self._awaited.clear()
            self._missing |= here - ready
        return self._take(ready, reason, now)

    def end(self, now: float) -> Closing | None:
        """Close with what is there, as nothing more will come. None if nothing is."""
        return self._take(set(self._party_of.values()), ENDED, now) if self._offered else None

    def alarm(self) -> float:
        """When to try to close again, if nothing happens before; inf: never."""
        if self._opened_at is None:
            return math.inf
        limits = [limit for limit in (self._policy.window_s, self._policy.deadline_s) if limit is not None]
        return self._opened_at + min(limits, default=math.inf)

    def _ready(self) -> set[str]:
        """Parties all of whose members have contributed."""
        waiting = {party for member, party in self._party_of.items() if member not in self._offered}
        return set(self._party_of.values()) - waiting

    def _overdue(self, now: float) -> str:
        assert self._opened_at is not None
        open_s = now - self._opened_at
        if self._policy.window_s is not None and open_s >= self._policy.window_s:
            return WINDOW
        if self._policy.deadline_s is not None and open_s >= self._policy.deadline_s:
            return DEADLINE
        return ""

    def _take(self, parties: set[str], reason: str, now: float) -> Closing:
        taken = tuple(sorted(member for member in self._offered if self._party_of[member] in parties))
        open_s = now - (now if self._opened_at is None else self._opened_at)
        self._offered.difference_update(taken)
        self._opened_at = now if self._offered else None
        return Closing(taken, reason, open_s)

    def _withdraw(self, member: str) -> bool:
        had = member in self._offered
        self._offered.discard(member)
        if not self._offered:
            self._opened_at = None
        return had
