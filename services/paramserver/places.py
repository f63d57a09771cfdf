"""Who has which number among the samplers, and which learner each works for. Pure: the clock is injected.

The rule. A sampler that comes is given the least number that nobody has, and the learner with the fewest
samplers. It keeps its place by reporting; silent for the lease, it has lost it, and the number is free for
another one (of a later incarnation, so that the two are never mixed up). When the samplers of two learners
differ by more than one, the next sampler of the larger group that reports is told to change over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import ExhaustedError
from headrace.types import SamplerIdentity

LEASE_S = 30.0
"""Seconds without a report after which a sampler has lost its place; they report about once a second."""


@dataclass(frozen=True, slots=True)
class Place:
    """One sampler's. ``name`` is what people call its process, ``instance`` that start of it."""

    index: int
    identity: SamplerIdentity
    name: str
    instance: str
    learner: int
    heard_at: float


class Places:
    """All places that are taken. Not thread-safe.

    Invariants: no two have the same number, name or identity; there are never more than ``most``.
    """

    def __init__(
        self, *, num_learners: int, most: int, clock: Callable[[], float], lease_s: float = LEASE_S
    ) -> None:
        self._num_learners = num_learners
        self._most = most
        self._clock = clock
        self._lease_s = lease_s
        self._places: dict[int, Place] = {}

    def join(self, name: str, instance: str, claim: Callable[[int], SamplerIdentity]) -> Place:
        """The place of ``name``: the one it has, if this start of it has one, else a new one.

        ``claim(index)`` gives an identity that nobody ever had. An earlier process of that name is gone.
        ExhaustedError: ``most`` samplers are there.
        """
        self.expire()
        before = next((place for place in self._places.values() if place.name == name), None)
        if before is not None and before.instance == instance:
            return before
        if before is None and len(self._places) >= self._most:
            raise ExhaustedError(
                f"{self._most} samplers are there, as many as sampler.max_count allows; {name} has to wait"
            )
        if before is not None:
            del self._places[before.index]
        index = next(number for number in range(self._most) if number not in self._places)
        learner = self._least_loaded()
        place = Place(index, claim(index), name, instance, learner, self._clock())
        self._places[index] = place
        return place

    def renew(self, place: Place) -> int | None:
        """Heard of a sampler that says it has ``place``: the number of the learner that it should work for.

        One that isn't known (this server was started anew, or had given it up) is taken in again if its
        number is free. None: it has no place any more.
        """
        self.expire()
        known = self._places.get(place.index)
        if known is None:
            known = self._adopted(place)
        if known is None or (known.identity, known.instance) != (place.identity, place.instance):
            return None
        learner = known.learner
        loads = self._loads()
        fewest = self._least_loaded()
        if loads[learner] - loads[fewest] > 1:
            learner = fewest
        self._places[place.index] = Place(
            known.index, known.identity, known.name, known.instance, learner, self._clock()
        )
        return learner

    def leave(self, identity: SamplerIdentity) -> None:
        """It has left in order; its number is free."""
        for place in list(self._places.values()):
            if place.identity == identity:
                del self._places[place.index]

    def expire(self) -> None:
        """Give up whoever was silent for the lease."""
        oldest = self._clock() - self._lease_s
        for place in list(self._places.values()):
            if place.heard_at < oldest:
                del self._places[place.index]

    def taken(self) -> list[Place]:
        """All places, by number."""
        return [self._places[index] for index in sorted(self._places)]

    def _adopted(self, place: Place) -> Place | None:
        others = (other.name for other in self._places.values())
        if not 0 <= place.index < self._most or len(self._places) >= self._most or place.name in others:
            return None
        learner = place.learner if place.learner < self._num_learners else self._least_loaded()
        return self._places.setdefault(
            place.index,
            Place(place.index, place.identity, place.name, place.instance, learner, self._clock()),
        )

    def _loads(self) -> Counter[int]:
        return Counter(place.learner for place in self._places.values())

    def _least_loaded(self) -> int:
        loads = self._loads()
        return min(range(self._num_learners), key=lambda learner: (loads[learner], learner))
