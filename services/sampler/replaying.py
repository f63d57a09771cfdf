"""The off-policy sampler's loop: wait for leave to insert, act one fragment, store it in the hot tier."""

from __future__ import annotations

from headrace.clients.directory import ShardMembership
from headrace.config.choices import off_policy
from headrace.config.sections import Config
from headrace.replay.members import ShardStatus
from headrace.replay.shard import HotShard
from headrace.rl.initial_priorities import initial_priorities
from headrace.trail import FragmentTrail
from headrace.types import EPISODE_LENGTH, EPISODE_RETURN, Fragment
from services.sampler.acting import Acting
from services.sampler.sinker import Sinker

_POLL_S = 0.2  # how often a wait looks up to see whether the run has ended


class ReplaySampler:
    """Acts until told to stop.

    Invariant: a fragment is started only with the directory's leave, and counts against it once stored.
    """

    def __init__(
        self,
        config: Config,
        acting: Acting,
        shard: HotShard,
        membership: ShardMembership,
        sinker: Sinker | None,
        trail: FragmentTrail,
    ) -> None:
        """``sinker`` is None where there is no cold tier."""
        self._trail = trail
        self._settings = off_policy(config)
        self._prioritized = config.replay.selector == "prioritized"
        self._transitions = config.environment.lanes * config.sampler.fragment_length
        self._acting = acting
        self._shard = shard
        self._membership = membership
        self._sinker = sinker
        self._evicted = 0  # from the hot tier, where there is no cold one

    def run(self) -> None:
        """Produce fragments until told to stop. Raises what environments and peers make fatal."""
        acting = self._acting
        while not acting.stopping():
            granted = self._may_act()
            self._observe()
            fatal = self._membership.fatal or acting.snapshots.fatal
            if fatal is not None:
                raise fatal
            if self._sinker is not None and self._sinker.error is not None:
                raise self._sinker.error
            if not granted:
                continue
            self._shard.set_version(acting.newest_number)
            fragment = acting.act()
            if fragment is not None:
                self._store(fragment)

    def leave(self, *, reason: str, deadline_s: float) -> bool:
        """Sink what is only here, leave the directory. Returns whether all of it is in the cold tier."""
        self._shard.flush()
        sunk = self._sinker is not None and self._sinker.leave(reason, deadline_s)
        self._report()
        self._membership.leave(reason, deadline_s)
        self._observe()
        self._acting.account.drained()
        return sunk

    def _may_act(self) -> bool:
        if self._acting.newest_number < 0:
            return self._acting.snapshots.wait_newer(None, _POLL_S) is not None
        return self._membership.acquire(self._transitions, _POLL_S)

    def _store(self, fragment: Fragment) -> None:
        settings, priorities = self._settings, None
        if self._prioritized:
            priorities = initial_priorities(fragment, gamma=settings.gamma, n_step=settings.n_step)
        evicted = self._shard.insert(fragment, priorities)
        if self._sinker is not None:
            self._sinker.inserted(evicted)
        else:
            self._evicted += sum(gone.num_transitions for gone in evicted)
        self._trail.append(fragment, stored=str(fragment.id.sampler))
        self._membership.episodes(
            fragment.columns[EPISODE_RETURN].tolist(), fragment.columns[EPISODE_LENGTH].tolist()
        )
        self._report()

    def _report(self) -> None:
        stats = self._shard.stats()
        self._membership.report(
            ShardStatus(
                mass=stats.mass,
                count=stats.count,
                inserted=stats.inserted,
                evicted=stats.evicted,
                drawn=stats.drawn,
                newest_version=stats.newest_version,
                fill_ratio=stats.fill_ratio,
            )
        )

    def _observe(self) -> None:
        """Bring account and metrics up to date."""
        acting, stats = self._acting, self._shard.stats()
        unsunk = self._evicted if self._sinker is None else self._sinker.evicted_unsunk
        acting.account.evicted_unsunk(unsunk)
        acting.metrics.observe_waits(self._membership.wait_seconds, 0)
        acting.metrics.observe_hot_tier(stats)
        acting.observe_counts()
