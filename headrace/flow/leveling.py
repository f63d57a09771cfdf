"""Leveling: slower samplers make shorter fragments, so that all are done at the same time.

The rule. Every sampler says how many steps per lane and second it makes while it acts; what it waits for
leave or for parameters is not in that number. The pace is the speed of the sampler in the middle (of two
the faster one), so neither a few slow ones nor one that is extraordinarily fast move it. A sampler of speed
``s`` has the quota ``T * s / pace``, rounded down: what it makes while the middle one makes T steps. It is
never above T and never below ``min_share * T``.

Speeds are medians, so that one long pause (an environment that is rebuilt, a busy machine) moves nothing.
A quota that is far off by each of the last few fragments changes at once; a small correction takes many, and
there is none while it is about right. Once a quota has changed, only fragments made under it count, because
what a fragment costs besides its steps weighs more in a short one. So it settles where its fragment, with
all its costs, takes as long as the middle one's: with ``c`` seconds of costs and ``b`` a step,
``q <- T / pace * q / (c + b * q)`` comes to rest at ``c + b * q = T / pace``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from statistics import median

_FEW, _MANY = 3, 9  # fragments in a row that show what is far off, and what is a little
# What a sampler makes in time over its quota. With less the others wait for it, with more it waits for them.
_FAR_LESS, _FAR_MORE = 0.8, 1.25
_LESS, _MORE = 0.95, 1.1


@dataclass(frozen=True, slots=True)
class Quota:
    """What one sampler's fragments are to hold from now on, and why.

    ``steps`` are per lane, at most T; ``speed`` is the sampler's, ``pace`` that of the one in the middle,
    both in steps per lane and second.
    """

    steps: int
    speed: float
    pace: float


@dataclass(slots=True)
class _Member:
    """One stream: its quota, speeds of the last fragments made under it, its speed so far (0: unknown)."""

    steps: int
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_MANY))
    speed: float = 0.0


class Leveling:
    """Quotas of all streams of a receiver. Knows neither fragments nor time. Not thread-safe.

    Invariants: ``ceil(min_share * T) <= quota <= T``; a faster stream's quota is, within what counts as
    about right, no smaller; only what a stream itself shows changes its quota.
    """

    def __init__(self, *, fragment_steps: int, min_share: float) -> None:
        """``fragment_steps`` is T; a quota is at least ``min_share`` of it (above 0, at most 1)."""
        self._full = fragment_steps
        self._least = max(1, math.ceil(min_share * fragment_steps))
        self._members: dict[int, _Member] = {}
        self._speeds: list[float] = []  # the known ones, ascending

    @property
    def pace(self) -> float:
        """Speed of the stream in the middle, in steps per lane and second; 0: nobody's is known."""
        return self._speeds[len(self._speeds) // 2] if self._speeds else 0.0

    def join(self, stream: int) -> None:
        """A stream begins, with whole fragments."""
        self._members[stream] = _Member(self._full)

    def leave(self, stream: int) -> None:
        """The stream is gone; the others are no longer compared with it."""
        self._set_speed(self._members.pop(stream), 0.0)

    def steps(self, stream: int) -> int:
        """The stream's quota, in steps per lane."""
        return self._members[stream].steps

    def observe(self, stream: int, speed: float) -> Quota | None:
        """A fragment was made at ``speed`` steps per lane and second. Returns its quota if it changes.

        What is no speed (0, negative, not finite) is passed over.
        """
        if not (math.isfinite(speed) and speed > 0):
            return None
        member = self._members[stream]
        member.recent.append(speed)
        if len(member.recent) < _FEW:
            return None
        least, middle, most = sorted(list(member.recent)[-_FEW:])
        self._set_speed(member, middle)
        if self._due(most) < _FAR_LESS * member.steps or self._due(least) > _FAR_MORE * member.steps:
            return self._change(member)
        self._set_speed(member, median(member.recent))
        due = self._due(member.speed)
        about_right = _LESS * member.steps <= due <= _MORE * member.steps
        whole_again = member.steps < self._full <= due
        if len(member.recent) < _MANY or (about_right and not whole_again):
            return None
        return self._change(member)

    def _due(self, speed: float) -> float:
        """Steps that one of this speed makes while the one in the middle makes T."""
        return self._full * speed / self.pace

    def _change(self, member: _Member) -> Quota | None:
        """Make the quota what is due; None if it is as near to that as it may be."""
        steps = min(self._full, max(self._least, int(self._due(member.speed))))
        if steps == member.steps:
            return None
        member.steps = steps
        member.recent.clear()
        return Quota(steps, member.speed, self.pace)

    def _set_speed(self, member: _Member, speed: float) -> None:
        if member.speed:
            del self._speeds[bisect_left(self._speeds, member.speed)]
        member.speed = speed
        if speed:
            insort(self._speeds, speed)
