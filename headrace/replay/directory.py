"""Who holds which experience, and who may go on: the directory of replay, without wires or threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from headrace.errors import InvalidDataError, UnavailableError
from headrace.replay.limiter import FRAGMENTS_AHEAD, UNLIMITED, Limiter, Limits
from headrace.replay.members import (
    MIN_SIZE,
    SAMPLES_PER_INSERT,
    DirectoryGlance,
    DirectoryTotals,
    DirectoryView,
    ShardGrant,
    ShardIdentity,
    ShardReport,
    ShardStatus,
    ShardView,
)
from headrace.replay.reporting import drift, view_tells_news
from headrace.replay.totals import Totals

GRACE_S = 2.0
"""Seconds for which a shard stays when its stream has broken: it may only be reconnecting."""

REJOIN_S = 5.0
"""Seconds that a new directory waits at most for its predecessor's shards before it speaks to learners."""

QUIET_S = 1.0
"""Seconds between two views or grants where nothing has changed that anyone would wait for."""


@dataclass(slots=True, eq=False)
class _Member:
    """A shard that is here. ``granted``: transitions its incarnation may have inserted in total."""

    token: int
    shard: ShardIdentity
    heard_at: float
    status: ShardStatus = field(default_factory=ShardStatus)
    reported: bool = False
    broken_at: float | None = None
    granted: int = 0
    served: int = 0  # the how-manieth grant was its last: who has waited longest comes first
    episodes: int = 0
    sent: ShardGrant | None = None

    @property
    def name(self) -> str:
        """Under which a successor's shard is known to be the same one's."""
        return self.shard.sampler.sampler_id if self.shard.sampler else self.shard.shard_id


@dataclass(slots=True, eq=False)
class _Follower:
    """A learner's process that follows. ``sent``: the newest view it was told."""

    token: int
    learner_id: str
    incarnation: int
    sent: DirectoryView | None = None
    sent_at: float = 0.0
    newest_version: int = 0


class Directory:
    """Masses in, weights and leave out. Not thread-safe; ``clock`` is monotonic.

    Invariants: totals never fall, over members' restarts and its own; a member that is silent for
    ``outage_s`` seconds, or whose stream has been broken for ``grace_s``, has left; leave of a shard that
    has left is given to others; each shard gets leave for a whole fragment before any gets more.

    ``limits`` say what the configured samplers may insert at once and one learner draws; more of either
    widen the tolerance.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        outage_s: float,
        rebalance_drift: float,
        clock: Callable[[], float],
        before: DirectoryTotals | None = None,
        grace_s: float = GRACE_S,
        rejoin_s: float = REJOIN_S,
    ) -> None:
        before = before or DirectoryTotals()
        self.limiter = Limiter(limits)
        self._limits = limits
        self.limited_s = {"insert": 0.0, "sample": 0.0}
        self._totals = Totals(before)
        self._outage_s = outage_s
        self._rebalance_drift = rebalance_drift
        self._clock = clock
        self._grace_s = min(grace_s, outage_s)
        self._members: dict[str, _Member] = {}
        self._followers: dict[str, _Follower] = {}
        self._missing = set(before.shards)
        self._speaks_at = clock() + min(rejoin_s, outage_s)
        self._last_token = 0
        self._serving = 0
        self._looked_at = clock()
        self._count()

    # Shards.

    def join(self, shard: ShardIdentity) -> int:
        """A shard is here, or here again; returns the token of its stream, which ends its earlier ones.

        HandshakeError if a newer incarnation of its sampler has been here.
        """
        if (shard.tier == "hot") != (shard.sampler is not None and shard.fragment_transitions > 0):
            raise InvalidDataError(
                f"shard {shard.shard_id}: a hot shard, and no other, has a sampler that inserts"
            )
        if shard.sampler is not None:
            self._totals.begin_sampler(shard.sampler)
        before = self._members.get(shard.shard_id)
        token = self._next_token()
        member = _Member(token, shard, self._clock())
        if before is not None and before.shard == shard:
            member = replace(before, token=token, heard_at=self._clock(), broken_at=None, sent=None)
        for other in [m for m in self._members.values() if m.name == member.name]:
            del self._members[other.shard.shard_id]
        self._members[shard.shard_id] = member
        self._count()
        return token

    def report(self, token: int, report: ShardReport) -> None:
        """A shard's state. UnavailableError if the stream is no longer its own: it should join again."""
        member = self._member(token)
        member.heard_at = self._clock()
        member.status = report.status
        if member.shard.sampler is not None:
            member.episodes = self._totals.sampler_reports(
                member.shard.sampler, report.status.inserted, report.episodes, report.results
            )
            member.granted = max(member.granted, report.insert_allowance, report.status.inserted)
        member.reported = True
        self._missing.discard(member.name)
        self._count()

    def leave(self, token: int) -> None:
        """A shard leaves in order."""
        self._drop([member for member in self._members.values() if member.token == token])

    def broken(self, token: int) -> None:
        """A shard's stream has ended without a word."""
        for member in self._members.values():
            if member.token == token:
                member.broken_at = self._clock()

    # Learners.

    def follow(self, learner_id: str, incarnation: int) -> tuple[int, int]:
        """A learner's process follows; returns its stream's token and the process's number (a new one for 0).

        HandshakeError if a newer process of that learner has been here.
        """
        number = self._totals.begin_learner(learner_id, incarnation)
        follower = _Follower(self._next_token(), learner_id, number)
        self._followers[learner_id] = follower
        self._count()
        return follower.token, number

    def learner_reports(self, token: int, drawn: int, newest_version: int = 0) -> None:
        """A learner has drawn so many items in total, in this process, and published that version."""
        for follower in self._followers.values():
            if follower.token == token:
                self._totals.learner_reports(follower.learner_id, follower.incarnation, drawn)
                follower.newest_version = newest_version
                self._count()
                return
        raise UnavailableError("this stream was replaced by a newer one of the same learner")

    def unfollow(self, token: int) -> None:
        """A learner's stream has ended."""
        self._followers = {name: own for name, own in self._followers.items() if own.token != token}
        self._count()

    # What there is to say.

    def on_time(self) -> None:
        """Let go of who is silent, and account for the time that sides were held back."""
        now = self._clock()
        elapsed, self._looked_at = now - self._looked_at, now
        if any(member.sent and member.sent.throttled_by for member in self._members.values()):
            self.limited_s["insert"] += elapsed
        if any(own.sent and own.sent.throttled_by for own in self._followers.values()):
            self.limited_s["sample"] += elapsed
        self._drop(
            [
                member
                for member in self._members.values()
                if now - member.heard_at > self._outage_s
                or (member.broken_at is not None and now - member.broken_at > self._grace_s)
            ]
        )

    def grants(self) -> list[tuple[int, ShardGrant]]:
        """New grants, by token, after giving out what may be given; each is returned once."""
        self._share_out()
        changed = []
        for member in self._members.values():
            grant = self._grant_of(member)
            if member.reported and grant != member.sent:
                member.sent = grant
                changed.append((member.token, grant))
        return changed

    def views(self) -> list[tuple[int, DirectoryView]]:
        """New views, by token, of learners that should hear of a change; each is returned once."""
        if self._missing and self._clock() < self._speaks_at:
            return []
        due = []
        for follower in self._followers.values():
            view = self._view_of(follower)
            if self._is_due(follower, view):
                if follower.sent is not None:
                    view = replace(view, drift=drift(follower.sent.shards, view.shards))
                follower.sent, follower.sent_at = view, self._clock()
                due.append((follower.token, view))
        return due

    def glance(self) -> DirectoryGlance:
        """Everything at a glance, for people."""
        return DirectoryGlance(
            view=replace(
                self._describe(self.limiter.sample_allowance, self._sample_throttle()), drift=self.drift
            ),
            shards={own.shard.shard_id: own.status for own in self._members.values()},
            learners={own.learner_id: own.newest_version for own in self._followers.values()},
            limited_s=dict(self.limited_s),
        )

    @property
    def drift(self) -> float:
        """Largest total variation between the masses a learner was told and the true ones, 0 to 1."""
        sent = [own.sent.shards for own in self._followers.values() if own.sent is not None]
        return max((drift(shards, self._shards()) for shards in sent), default=0.0)

    @property
    def num_members(self) -> dict[str, int]:
        """Shards that are here, by tier."""
        tiers = [member.shard.tier for member in self._members.values()]
        return {tier: tiers.count(tier) for tier in ("hot", "cold")}

    def save(self) -> DirectoryTotals:
        """What must outlive this process."""
        return self._totals.save(sorted(member.name for member in self._members.values()))

    def _next_token(self) -> int:
        self._last_token += 1
        return self._last_token

    def _member(self, token: int) -> _Member:
        for member in self._members.values():
            if member.token == token:
                return member
        raise UnavailableError("the directory no longer counts on this stream; join again")

    def _drop(self, members: Iterable[_Member]) -> None:
        for member in members:
            del self._members[member.shard.shard_id]
        self._count()

    def _count(self) -> None:
        promised = FRAGMENTS_AHEAD * sum(own.shard.fragment_transitions for own in self._members.values())
        limits = replace(
            self._limits,
            largest_insert=max(self._limits.largest_insert, promised),
            largest_draw=self._limits.largest_draw * max(1, len(self._followers)),
        )
        if limits != self.limiter.limits:
            self.limiter.set_limits(limits)
        self.limiter.update(
            inserted=self._totals.env_steps,
            sampled=self._totals.samples,
            stored=sum(member.status.count for member in self._members.values()),
        )

    # Leave for shards.

    def _hot(self) -> list[_Member]:
        return [own for own in self._members.values() if own.shard.tier == "hot" and own.reported]

    def _outstanding(self, member: _Member) -> int:
        return member.granted - member.status.inserted

    def _share_out(self) -> None:
        """A whole fragment for each shard; who was served longest ago comes first, and nobody overtakes.

        Ahead of need only while there is room for one more of each: where room is short, leave that lies
        idle at one shard is what another one waits for.
        """
        allowance = self.limiter.insert_allowance
        hot = self._hot()
        members = sorted((own for own in hot if own.broken_at is None), key=lambda own: own.served)
        if allowance == UNLIMITED:
            for member in members:
                member.granted = UNLIMITED
            return
        room = allowance - self.limiter.inserted - sum(map(self._outstanding, hot))
        one_of_each = sum(member.shard.fragment_transitions for member in members)
        for ahead, reserve in ((1, 0), (FRAGMENTS_AHEAD, one_of_each)):
            for member in members:
                missing = ahead * member.shard.fragment_transitions - self._outstanding(member)
                if missing > room - reserve:
                    return
                if missing > 0:
                    member.granted += missing
                    room -= missing
                    self._serving += 1
                    member.served = self._serving

    def _grant_of(self, member: _Member) -> ShardGrant:
        throttled = (
            member.shard.tier == "hot" and self._outstanding(member) < member.shard.fragment_transitions
        )
        return ShardGrant(member.granted, SAMPLES_PER_INSERT if throttled else "", member.episodes)

    # Views for learners.

    def _shards(self) -> tuple[ShardView, ...]:
        return tuple(
            ShardView(
                own.shard.shard_id, own.shard.address, own.shard.tier, own.status.mass, own.status.count
            )
            for own in sorted(self._members.values(), key=lambda own: own.shard.shard_id)
            if own.reported
        )

    def _sample_throttle(self) -> str:
        if not self.limiter.has_enough:
            return MIN_SIZE
        room = self.limiter.sample_allowance - self.limiter.sampled
        return SAMPLES_PER_INSERT if room < self.limiter.limits.largest_draw else ""

    def _view_of(self, follower: _Follower) -> DirectoryView:
        """With an equal share of what all learners may draw."""
        allowance = self.limiter.sample_allowance
        if allowance != UNLIMITED:
            share = (allowance - self.limiter.sampled) // len(self._followers)
            allowance = self._totals.drawn(follower.learner_id) + share
        return self._describe(allowance, self._sample_throttle())

    def _describe(self, sample_allowance: int, throttled_by: str) -> DirectoryView:
        limits = self.limiter.limits
        recent = self._totals.recent
        return DirectoryView(
            shards=self._shards(),
            sample_allowance=sample_allowance,
            outage_samples=int(limits.tolerance),
            throttled_by=throttled_by,
            samples=self.limiter.sampled,
            env_steps=self.limiter.inserted,
            episodes=self._totals.episodes,
            recent_returns=tuple(episode_return for episode_return, _ in recent),
            recent_lengths=tuple(length for _, length in recent),
        )

    def _is_due(self, follower: _Follower, view: DirectoryView) -> bool:
        sent = follower.sent
        if sent is None or replace(view, drift=sent.drift) == sent:
            return sent is None
        left = sent.sample_allowance - self._totals.drawn(follower.learner_id)
        short = left < 2 * self.limiter.limits.largest_draw
        news = view_tells_news(sent, view, short=short, rebalance_drift=self._rebalance_drift)
        return news or self._clock() - follower.sent_at >= QUIET_S
