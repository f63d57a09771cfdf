"""Totals of a run over all lives of its samplers and learners: they only rise, and nothing counts twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from headrace.errors import HandshakeError
from headrace.replay.members import DirectoryTotals, EpisodeResult, LearnerTotals, SamplerTotals
from headrace.types import SamplerIdentity

RECENT_EPISODES = 100


class Totals:
    """What has been inserted, finished and drawn. Not thread-safe.

    Each member reports totals of its own life, so a report that is lost or repeated does no harm; of a life
    that is over, what was reported last stays counted. Bounded: one entry a sampler and a learner, whatever
    number of lives.
    """

    def __init__(self, before: DirectoryTotals) -> None:
        self._samplers = dict(before.samplers)
        self._learners = dict(before.learners)
        self._recent: deque[tuple[float, int]] = deque(before.recent, maxlen=RECENT_EPISODES)

    @property
    def env_steps(self) -> int:
        """Transitions ever inserted."""
        return sum(own.past_inserted + own.inserted for own in self._samplers.values())

    @property
    def episodes(self) -> int:
        """Training episodes ever finished."""
        return sum(own.past_episodes + own.episodes for own in self._samplers.values())

    @property
    def samples(self) -> int:
        """Items ever drawn."""
        return sum(own.past_drawn + own.drawn for own in self._learners.values())

    @property
    def recent(self) -> tuple[tuple[float, int], ...]:
        """Return and length of the newest 100 episodes, oldest first."""
        return tuple(self._recent)

    def begin_sampler(self, sampler: SamplerIdentity) -> None:
        """An incarnation reports from now on. HandshakeError if there has been a newer one."""
        own = self._samplers.get(sampler.sampler_id)
        if own is None:
            self._samplers[sampler.sampler_id] = SamplerTotals(sampler.incarnation)
        elif sampler.incarnation < own.incarnation:
            raise HandshakeError(
                f"incarnation {sampler.incarnation} of {sampler.sampler_id} is superseded by incarnation "
                f"{own.incarnation}"
            )
        elif sampler.incarnation > own.incarnation:
            self._samplers[sampler.sampler_id] = SamplerTotals(
                sampler.incarnation,
                past_inserted=own.past_inserted + own.inserted,
                past_episodes=own.past_episodes + own.episodes,
            )

    def sampler_reports(
        self, sampler: SamplerIdentity, inserted: int, episodes: int, results: Sequence[EpisodeResult]
    ) -> int:
        """Take in an incarnation's totals and its newest episodes; returns how many of those are taken in."""
        own = self._samplers[sampler.sampler_id]
        if own.incarnation != sampler.incarnation:
            raise HandshakeError(f"{sampler} is superseded by incarnation {own.incarnation}")
        for result in results:
            if result.number >= own.episodes:
                self._recent.append((result.episode_return, result.length))
        self._samplers[sampler.sampler_id] = replace(
            own, inserted=max(own.inserted, inserted), episodes=max(own.episodes, episodes)
        )
        return max(own.episodes, episodes)

    def begin_learner(self, learner_id: str, incarnation: int) -> int:
        """A learner's process reports from now on; returns its number, a new one for 0.

        HandshakeError if there has been a newer process of that learner.
        """
        own = self._learners.get(learner_id)
        if own is None:
            self._learners[learner_id] = LearnerTotals(max(1, incarnation))
        elif incarnation == 0 or incarnation > own.incarnation:
            self._learners[learner_id] = LearnerTotals(
                max(incarnation, own.incarnation + 1), past_drawn=own.past_drawn + own.drawn
            )
        elif incarnation < own.incarnation:
            raise HandshakeError(f"process {incarnation} of {learner_id} is superseded by {own.incarnation}")
        return self._learners[learner_id].incarnation

    def drawn(self, learner_id: str) -> int:
        """Items that the learner's newest process has drawn."""
        return self._learners[learner_id].drawn

    def learner_reports(self, learner_id: str, incarnation: int, drawn: int) -> None:
        """Take in the total of a learner's process."""
        own = self._learners[learner_id]
        if own.incarnation != incarnation:
            raise HandshakeError(f"process {incarnation} of {learner_id} is superseded by {own.incarnation}")
        self._learners[learner_id] = replace(own, drawn=max(own.drawn, drawn))

    def save(self, shards: Sequence[str]) -> DirectoryTotals:
        """What must outlive this process; ``shards`` are the names of those that are there."""
        return DirectoryTotals(dict(self._samplers), dict(self._learners), self.recent, tuple(shards))
