"""The directory's decisions: who is here, who may insert how much, what learners are told and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import HandshakeError, InvalidDataError, UnavailableError
from headrace.replay.directory import QUIET_S, Directory
from headrace.replay.limiter import UNLIMITED, Limits
from headrace.replay.members import (
    DirectoryTotals,
    DirectoryView,
    EpisodeResult,
    ShardGrant,
    ShardIdentity,
    ShardReport,
    ShardStatus,
)
from headrace.types import SamplerIdentity

F = 10  # transitions of a fragment
LIMITS = Limits(1.0, min_size_to_sample=100, tolerance_share=0.0, largest_insert=2 * F, largest_draw=8)


class World:
    """A directory with a clock that is turned by hand."""

    def __init__(
        self, limits: Limits = LIMITS, before: DirectoryTotals | None = None, **changes: Any
    ) -> None:
        self.now = 0.0
        values: dict[str, Any] = {"outage_s": 30.0, "rebalance_drift": 0.1, "grace_s": 2.0}
        self.directory = Directory(limits, clock=lambda: self.now, before=before, **values | changes)

    def join(self, name: str = "sampler-0", incarnation: int = 0, inserted: int = 0, **fields: Any) -> int:
        token = self.directory.join(hot(name, incarnation))
        self.report(token, inserted, **fields)
        return token

    def report(self, token: int, inserted: int, *, mass: float | None = None, **fields: Any) -> None:
        status = ShardStatus(
            mass=inserted if mass is None else mass, count=fields.pop("count", inserted), inserted=inserted
        )
        self.directory.report(token, ShardReport(status, **fields))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.directory.on_time()

    def grants(self) -> dict[int, ShardGrant]:
        return dict(self.directory.grants())

    def views(self) -> dict[int, DirectoryView]:
        return dict(self.directory.views())

    @property
    def env_steps(self) -> int:
        return self.directory.glance().view.env_steps

    @property
    def names(self) -> list[str]:
        return [shard.shard_id for shard in self.directory.glance().view.shards]


def hot(name: str = "sampler-0", incarnation: int = 0) -> ShardIdentity:
    return ShardIdentity(name, "host:1", "hot", SamplerIdentity(name, incarnation), F)


def test_a_shard_is_seen_once_it_has_reported() -> None:
    world = World()
    token = world.directory.join(hot())
    assert (world.names, world.grants()) == ([], {})
    world.report(token, 0)
    assert world.names == ["sampler-0"]
    assert world.grants()[token].insert_allowance == 2 * F


def test_a_silent_shard_has_left_after_its_lease_and_must_join_again() -> None:
    world = World()
    token = world.join(inserted=50)
    world.pass_time(30.0)
    assert world.names == ["sampler-0"]
    world.pass_time(0.1)
    assert world.names == []
    with pytest.raises(UnavailableError, match="join again"):
        world.report(token, 60)
    world.join(inserted=60)
    assert (world.names, world.env_steps) == (["sampler-0"], 60)


def test_a_broken_stream_is_forgiven_for_a_short_grace() -> None:
    world = World()
    world.directory.broken(world.join(inserted=10))
    world.pass_time(2.0)
    token = world.join(inserted=20)
    world.pass_time(5.0)
    assert (world.names, world.env_steps) == (["sampler-0"], 20)
    world.directory.broken(token)
    world.pass_time(2.1)
    assert world.names == []


def test_the_end_of_an_old_stream_does_not_hurt_the_new_one() -> None:
    world = World()
    old = world.join()
    new = world.join()
    world.directory.broken(old)
    world.directory.leave(old)
    world.pass_time(10.0)
    world.report(new, 10)
    assert world.names == ["sampler-0"]


def test_a_shard_that_comes_back_counts_once_with_the_leave_it_holds() -> None:
    world = World()
    token = world.join()
    granted = world.grants()[token].insert_allowance
    again = world.join(inserted=F, insert_allowance=granted)
    assert world.grants()[again].insert_allowance == granted + F
    assert world.env_steps == F


def test_what_dead_incarnations_inserted_stays_counted_and_they_stay_out() -> None:
    world = World()
    old = world.join(incarnation=0, inserted=30)
    new = world.join(incarnation=2, inserted=5)
    assert (world.names, world.env_steps) == (["sampler-0"], 35)
    with pytest.raises(UnavailableError):
        world.report(old, 40)
    with pytest.raises(HandshakeError, match="incarnation 1 of sampler-0 is superseded by incarnation 2"):
        world.directory.join(hot(incarnation=1))
    world.report(new, 6)
    assert world.env_steps == 36


def test_totals_that_fall_are_ignored() -> None:
    world = World()
    token = world.join(inserted=30)
    world.report(token, 20)
    assert world.env_steps == 30


def test_each_shard_has_leave_for_a_fragment_before_any_has_more() -> None:
    world = World(replace(LIMITS, min_size_to_sample=1, largest_insert=F))
    tokens = [world.join(f"sampler-{index}") for index in range(3)]
    grants = world.grants()
    assert all(grants[token].insert_allowance >= F for token in tokens)


def test_where_room_is_short_shards_take_turns() -> None:
    world = World(replace(LIMITS, min_size_to_sample=1))
    learner, _ = world.directory.follow("learner-0", 0)
    tokens = [world.join(f"sampler-{index}") for index in range(3)]
    allowed, inserted, drawn = dict.fromkeys(tokens, 0), dict.fromkeys(tokens, 0), 0
    for _ in range(300):
        allowed |= {token: grant.insert_allowance for token, grant in world.grants().items()}
        able = [token for token in tokens if inserted[token] + F <= allowed[token]]
        # The first one is always quicker than the others.
        if able:
            inserted[able[0]] += F
            world.report(able[0], inserted[able[0]])
        else:
            drawn += 8
            world.directory.learner_reports(learner, drawn)
    assert min(inserted.values()) > 0.5 * max(inserted.values())


def test_leave_of_a_shard_that_left_is_given_to_others() -> None:
    world = World(replace(LIMITS, min_size_to_sample=1, largest_insert=4 * F))
    gone, waiting = world.join("sampler-0"), world.join("sampler-1")
    inserted = allowed = 0
    while inserted + F <= (allowed := max(allowed, _allowance(world, waiting))):
        inserted += F
        world.report(waiting, inserted)
    world.directory.leave(gone)
    assert _allowance(world, waiting) > allowed


def _allowance(world: World, token: int) -> int:
    grant = world.grants().get(token)
    return 0 if grant is None else grant.insert_allowance


def test_a_shard_without_leave_hears_that_it_is_the_limiter() -> None:
    world = World()
    token = world.join()
    assert world.grants()[token].throttled_by == ""
    inserted, grant = 0, ShardGrant()
    while not grant.throttled_by:
        inserted += F
        world.report(token, inserted)
        grant = world.grants().get(token, grant)
    assert grant.throttled_by == "samples_per_insert"
    world.pass_time(3.0)
    assert world.directory.glance().limited_s["insert"] == 3.0


def test_more_shards_than_configured_widen_the_tolerance_so_that_all_may_go_on() -> None:
    world = World(replace(LIMITS, min_size_to_sample=1))
    tokens = [world.join(f"sampler-{index}") for index in range(50)]
    assert all(grant.insert_allowance >= F for grant in world.grants().values())
    assert len(tokens) == world.directory.num_members["hot"]


def test_without_a_ratio_leave_has_no_end() -> None:
    world = World(replace(LIMITS, samples_per_insert=None))
    token = world.join()
    assert world.grants()[token] == ShardGrant(UNLIMITED)


def test_a_grant_is_said_once() -> None:
    world = World()
    world.join()
    assert len(world.grants()) == 1
    assert world.grants() == {}


def test_episodes_count_once_however_often_they_are_reported() -> None:
    world = World()
    results = tuple(EpisodeResult(number, float(number), number + 1) for number in range(3))
    token = world.join(episodes=2, results=results[:2])
    assert world.grants()[token].episodes == 2
    world.join(episodes=3, results=results)  # a reconnect: the acknowledgement was lost
    view = world.directory.glance().view
    assert (view.episodes, view.recent_returns, view.recent_lengths) == (3, (0.0, 1.0, 2.0), (1, 2, 3))
    world.join(incarnation=1, episodes=1, results=results[:1])
    assert world.directory.glance().view.episodes == 4


def test_only_the_newest_hundred_episodes_are_kept() -> None:
    world = World()
    world.join(episodes=250, results=[EpisodeResult(number, float(number), 1) for number in range(150, 250)])
    world.join(incarnation=1, episodes=20, results=[EpisodeResult(number, -1.0, 1) for number in range(20)])
    view = world.directory.glance().view
    assert (view.episodes, len(view.recent_returns)) == (270, 100)
    assert view.recent_returns[-20:] == (-1.0,) * 20


def test_a_view_is_sent_for_members_and_drift_at_once_and_for_less_only_now_and_then() -> None:
    world = World(replace(LIMITS, samples_per_insert=None))
    learner, _ = world.directory.follow("learner-0", 0)
    assert world.views()[learner].shards == ()
    one, other = world.join("sampler-0", inserted=100), world.join("sampler-1", inserted=100)
    assert len(world.views()[learner].shards) == 2
    world.report(one, 110)  # of 210: weights move by 2.4 %
    assert world.views() == {}
    world.report(other, 100, mass=300.0)
    assert world.views()[learner].drift == pytest.approx(300 / 410 - 100 / 200)
    world.report(one, 112)
    assert world.views() == {}
    world.pass_time(QUIET_S)
    assert world.views()[learner].env_steps == 212
    world.pass_time(QUIET_S)
    assert world.views() == {}


def test_a_learner_that_is_short_of_leave_hears_at_once_that_there_is_more() -> None:
    world = World()
    learner, _ = world.directory.follow("learner-0", 0)
    shard = world.join(inserted=100)
    allowance = world.views()[learner].sample_allowance
    world.report(shard, 101)
    assert world.views() == {}  # it has plenty
    world.directory.learner_reports(learner, allowance - 10)
    world.report(shard, 103)
    assert world.views()[learner].sample_allowance == allowance + 3


def test_learners_share_what_may_be_drawn() -> None:
    world = World()
    one, _ = world.directory.follow("learner-0", 0)
    other, _ = world.directory.follow("learner-1", 0)
    world.join(inserted=150)
    world.directory.learner_reports(one, 20)
    views = world.views()
    left = world.directory.limiter.sample_allowance - 20
    assert views[one].sample_allowance == 20 + left // 2
    assert views[other].sample_allowance == left // 2


def test_a_learner_hears_what_it_waits_for() -> None:
    world = World()
    learner, _ = world.directory.follow("learner-0", 0)
    shard = world.join(inserted=99)
    view = world.views()[learner]
    assert (view.throttled_by, view.sample_allowance) == ("min_size_to_sample", 0)
    world.report(shard, 100)
    view = world.views()[learner]
    assert view.throttled_by == ""
    world.directory.learner_reports(learner, view.sample_allowance)
    assert world.views()[learner].throttled_by == "samples_per_insert"


def test_processes_of_a_learner_are_numbered_and_the_older_one_is_refused() -> None:
    world = World()
    old, first = world.directory.follow("learner-0", 0)
    world.directory.learner_reports(old, 30)
    new, second = world.directory.follow("learner-0", 0)
    world.directory.learner_reports(new, 5)
    assert (first, second) == (1, 2)
    assert world.directory.glance().view.samples == 35
    with pytest.raises(UnavailableError):
        world.directory.learner_reports(old, 31)
    with pytest.raises(HandshakeError, match="process 1 of learner-0 is superseded by 2"):
        world.directory.follow("learner-0", first)
    again, number = world.directory.follow("learner-0", second)
    world.directory.learner_reports(again, 6)
    assert (number, world.directory.glance().view.samples) == (2, 36)


def test_a_successor_goes_on_from_the_saved_totals_and_what_members_say() -> None:
    world = World()
    learner, number = world.directory.follow("learner-0", 0)
    world.directory.learner_reports(learner, 7)
    token = world.join(inserted=120, episodes=1, results=(EpisodeResult(0, 5.0, 9),))
    saved = world.directory.save()
    world.report(token, 130)  # after it was saved
    successor = World(before=saved)
    assert (successor.env_steps, successor.directory.glance().view.samples) == (120, 7)
    follower, _ = successor.directory.follow("learner-0", number)
    successor.directory.learner_reports(follower, 7)
    successor.join(inserted=130, episodes=1)
    view = successor.directory.glance().view
    assert (view.env_steps, view.samples, view.episodes, view.recent_returns) == (130, 7, 1, (5.0,))


def test_a_successor_speaks_to_learners_when_the_shards_are_back_or_have_had_their_time() -> None:
    world = World()
    world.join("sampler-0", inserted=100)
    world.join("sampler-1", inserted=100)
    saved = world.directory.save()
    for patient in (True, False):
        successor = World(before=saved, rejoin_s=5.0)
        learner, _ = successor.directory.follow("learner-0", 0)
        successor.join("sampler-0", incarnation=1, inserted=0)
        assert successor.views() == {}
        if patient:
            successor.join("sampler-1", inserted=100)
        else:
            successor.pass_time(5.0)
        assert learner in successor.views()


def test_a_hot_shard_needs_a_sampler_and_a_cold_one_has_none() -> None:
    world = World()
    for shard in (
        replace(hot(), sampler=None),
        replace(hot(), fragment_transitions=0),
        replace(hot(), tier="cold"),
    ):
        with pytest.raises(InvalidDataError, match="sampler-0"):
            world.directory.join(shard)


def test_what_a_cold_partition_inserts_is_no_new_experience() -> None:
    world = World()
    token = world.directory.join(ShardIdentity("cold-0", "host:2", "cold"))
    world.report(token, 70, mass=3.0)
    view = world.directory.glance().view
    assert (view.env_steps, view.count, view.mass) == (0, 70, 3.0)
