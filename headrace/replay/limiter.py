"""How often each transition is learned from: holds inserts and samples together, as Reverb's limiter does.

One number says how far the two are apart: ``cursor = inserted * samples_per_insert - sampled``. It is kept
within ``samples_per_insert * min_size_to_sample`` plus or minus a tolerance. What either side may do is given
out as a total since the start of the run, so that leave which is lost, repeated or granted ahead can't drift.

Law: Reverb (Cassirer et al., 2021), ``rate_limiter.h``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

UNLIMITED = 2**63 - 1
"""An allowance without end."""

FRAGMENTS_AHEAD = 2
"""Fragments for which a sampler may hold unused leave: one in the making, and one to hide a round trip."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of a limiter. Inserts are counted in transitions, samples in draws.

    ``samples_per_insert`` None: only ``min_size_to_sample`` holds. ``largest_insert``: transitions for
    which all samplers together may hold unused leave. ``largest_draw``: what all learners together draw at
    once.
    """

    samples_per_insert: float | None
    min_size_to_sample: int
    tolerance_share: float
    largest_insert: int
    largest_draw: int

    @property
    def tolerance(self) -> Fraction:
        """How far the cursor may be off on either side, in samples.

        At least so wide that one side may always go on. Inserts stop at the latest when the cursor is
        within ``largest_insert`` (and one, for rounding) of its upper bound, since so much may be promised
        to samplers that don't use it; samples stop within ``largest_draw`` of the lower one. The two must
        not meet, and the first ``min_size_to_sample`` transitions must come in before anything is drawn.
        """
        ratio = self._ratio
        insert = ratio * (self.largest_insert + 1)
        least = max(insert, (insert + self.largest_draw) / 2)
        return max(Fraction(self.tolerance_share) * self.min_size_to_sample * ratio, least)

    @property
    def middle(self) -> Fraction:
        """Where the cursor is when the ratio is kept exactly."""
        return self._ratio * self.min_size_to_sample

    @property
    def _ratio(self) -> Fraction:
        return Fraction(self.samples_per_insert or 0)


class Limiter:
    """Says how many transitions and samples there may be in total. Not thread-safe.

    Invariants, for whoever stays within the allowances: the cursor never leaves its bounds, but upward while
    less than ``min_size_to_sample`` is stored; and at any time a whole ``largest_insert`` or a whole
    ``largest_draw`` is allowed.

    The counters are its whole state: one that is told the same goes on the same.

    ``stored`` (transitions that can be drawn now) is what the shards say; all else are totals, which only
    rise.
    """

    def __init__(self, limits: Limits) -> None:
        self.inserted = 0
        self.sampled = 0
        self.stored = 0
        self.set_limits(limits)

    def set_limits(self, limits: Limits) -> None:
        """Go on under other limits."""
        self.limits = limits
        self._ratio = Fraction(limits.samples_per_insert or 0)
        self._lower = limits.middle - limits.tolerance
        self._upper = limits.middle + limits.tolerance

    def update(self, *, inserted: int, sampled: int, stored: int) -> None:
        """Take in the counters as they are now. Totals that fell are ignored."""
        self.inserted = max(self.inserted, inserted)
        self.sampled = max(self.sampled, sampled)
        self.stored = stored

    @property
    def insert_allowance(self) -> int:
        """Transitions that there may be in total since the start of the run."""
        if not self._ratio:
            return UNLIMITED
        by_ratio = math.floor((self.sampled + self._upper) / self._ratio)
        removed = max(0, self.inserted - self.stored)
        return max(by_ratio, removed + self.limits.min_size_to_sample + self.limits.largest_insert)

    @property
    def sample_allowance(self) -> int:
        """Samples that there may be in total; ``sampled`` while too little is stored."""
        if not self.has_enough:
            return self.sampled
        if not self._ratio:
            return UNLIMITED
        return max(self.sampled, math.floor(self.inserted * self._ratio - self._lower))

    @property
    def has_enough(self) -> bool:
        """Whether there is as much stored as there must be before anything is drawn."""
        return self.stored >= self.limits.min_size_to_sample


def deadlocks(
    *,
    samples_per_insert: float | None,
    min_size_to_sample: int,
    max_times_sampled: int | None,
    capacity: int | None = None,
    least_hot_bytes: int = 0,
) -> Iterator[str]:
    """Settings under which samplers and learner would wait for each other, or for nothing, for ever.

    One sentence each, beginning with the key to change, with the least or largest value that works.
    ``capacity``: transitions that replay surely holds (None: not known); ``least_hot_bytes``: the
    ``replay.hot_capacity_bytes`` with which it would hold enough.
    """
    if capacity is not None and min_size_to_sample > capacity:
        yield (
            f"replay.min_size_to_sample: {min_size_to_sample} transitions never come together, since replay "
            f"holds {capacity}; the least replay.hot_capacity_bytes that works is {least_hot_bytes}."
        )
    if samples_per_insert is not None and max_times_sampled is not None:
        least = math.ceil(samples_per_insert)
        if max_times_sampled < least:
            yield (
                f"replay.max_times_sampled: what leaves after {max_times_sampled} draws isn't learned from "
                f"replay.samples_per_insert = {samples_per_insert:g} times; the least is {least}."
            )
