"""The directory of replay over a real channel: leave, weights, deaths and restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from directing import (
    DRAW,
    FRAGMENT,
    WAIT_S,
    follower,
    make_config,
    make_handshake,
    make_shard,
    make_status,
    member,
    serving,
)
from paramserving import eventually

from headrace.clients.directory import DirectoryFollower, ShardMembership, glance
from headrace.clients.directory_messages import join_to_proto
from headrace.errors import HandshakeError, InvalidDataError
from headrace.replay.limiter import UNLIMITED
from headrace.replay.members import DirectoryView, ShardIdentity
from headrace.rpc.channel import open_channel
from headrace.v1 import directory_pb2
from headrace.v1.directory_service_pb2_grpc import DirectoryServiceStub


def insert(shard: ShardMembership, inserted: int) -> None:
    """Insert a fragment at a time, each with leave for it, until ``inserted`` are in."""
    for total in range(FRAGMENT, inserted + 1, FRAGMENT):
        assert shard.acquire(FRAGMENT, WAIT_S), f"no leave: {shard.wait_reason} {shard.fatal}"
        shard.report(make_status(total))


def seen(learner: DirectoryFollower, condition: Callable[[DirectoryView], bool], what: str) -> DirectoryView:
    """The first view for which the condition holds."""
    view = learner.view()
    while view is None or not condition(view):
        newer = learner.wait_change(view, WAIT_S)
        assert newer is not view, f"never told: {what}; last {view} {learner.fatal}"
        view = newer
    return view


def test_a_sampler_without_leave_waits_and_says_why_until_the_learner_has_drawn(tmp_path: Path) -> None:
    config = make_config(samples_per_insert=1.0)
    with serving(tmp_path, config) as directory, member(directory.address) as shard:
        inserted = 0
        while not shard.throttled_by:
            if shard.acquire(FRAGMENT, 0.1):
                inserted += FRAGMENT
                shard.report(make_status(inserted))
        assert inserted >= 64
        assert not shard.acquire(FRAGMENT, 0.1)
        assert shard.wait_reason == "samples_per_insert"
        assert shard.wait_seconds["samples_per_insert"] > 0
        with follower(directory.address) as learner:
            assert learner.acquire(DRAW, WAIT_S)
            assert shard.acquire(FRAGMENT, WAIT_S)


def test_a_learner_waits_for_enough_and_then_for_inserts_and_says_which(tmp_path: Path) -> None:
    config = make_config(samples_per_insert=1.0)
    with serving(tmp_path, config) as directory, member(directory.address) as shard:
        with follower(directory.address) as learner:
            seen(learner, lambda view: True, "anything")
            assert not learner.acquire(DRAW, 0.0)
            assert learner.wait_reason == "min_size_to_sample"
            insert(shard, 64)
            assert learner.acquire(DRAW, WAIT_S)
            while learner.wait_reason != "samples_per_insert":
                learner.acquire(DRAW, 0.1)
            view = seen(learner, lambda view: view.samples == learner.drawn, "all that was drawn")
            assert view.sample_allowance - learner.drawn < DRAW


def test_without_a_ratio_only_the_least_size_is_waited_for(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as directory,
        member(directory.address) as shard,
        follower(directory.address) as learner,
    ):
        insert(shard, 64)
        shard.report(make_status(640))
        view = seen(learner, lambda view: view.sample_allowance == UNLIMITED, "no limit")
        assert view.count >= 64
        assert learner.acquire(10**9, WAIT_S)


def test_learners_get_new_weights_when_masses_drift(tmp_path: Path) -> None:
    with serving(tmp_path) as directory, follower(directory.address) as learner:
        with (
            member(directory.address, make_shard("sampler-0")) as one,
            member(directory.address, make_shard("sampler-1")) as other,
        ):
            one.report(make_status(100))
            other.report(make_status(100))
            seen(learner, lambda view: [shard.mass for shard in view.shards] == [100, 100], "equal masses")
            other.report(make_status(100, mass=300.0))
            view = seen(
                learner, lambda view: [shard.mass for shard in view.shards] == [100, 300], "new masses"
            )
            assert view.drift == pytest.approx(0.25)
            assert view.shards[1].address == make_shard("sampler-1").address


def test_a_shard_whose_stream_breaks_leaves_and_its_inserts_stay_counted(tmp_path: Path) -> None:
    with serving(tmp_path) as directory, follower(directory.address) as learner:
        with member(directory.address) as shard:
            insert(shard, 64)
            seen(learner, lambda view: view.env_steps == 64 and len(view.shards) == 1, "the shard")
        # Closed without leaving in order, as a process that is killed.
        view = seen(learner, lambda view: not view.shards, "nobody is there")
        assert view.env_steps == 64


def test_a_shard_that_leaves_in_order_is_gone_with_its_last_word_counted(tmp_path: Path) -> None:
    with serving(tmp_path) as directory, follower(directory.address) as learner:
        with member(directory.address) as shard:
            seen(learner, lambda view: len(view.shards) == 1, "the shard")
            shard.report(make_status(16))
            shard.episodes([3.0], [7])
            assert shard.leave("SIGTERM", WAIT_S)
        view = seen(learner, lambda view: not view.shards and view.env_steps == 16, "its last word")
        assert (view.episodes, view.recent_returns, view.recent_lengths) == (1, (3.0,), (7,))


def test_a_new_incarnation_takes_the_place_of_the_old_one_which_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as directory, follower(directory.address) as learner:
        with member(directory.address, make_shard(incarnation=0)) as old:
            insert(old, 32)
            seen(learner, lambda view: view.env_steps == 32, "the old one")
            with member(directory.address, make_shard(incarnation=1)) as new:
                new.report(make_status(16))
                view = seen(learner, lambda view: view.env_steps == 48, "the sum of both")
                assert [shard.address for shard in view.shards] == [make_shard(incarnation=1).address]
                old.report(make_status(48))
                eventually(lambda: old.fatal is not None, "the old one is told")
                assert "superseded by incarnation 1" in str(old.fatal)


def test_a_directory_that_restarts_goes_on_with_its_totals(tmp_path: Path) -> None:
    config = make_config(samples_per_insert=1.0)
    with ExitStack() as stack:
        first = stack.enter_context(serving(tmp_path, config))
        shard = stack.enter_context(member(first.address))
        learner = stack.enter_context(follower(first.address))
        insert(shard, 64)
        shard.episodes([1.0, 2.0], [10, 20])
        assert learner.acquire(DRAW, WAIT_S)
        seen(learner, lambda view: view.episodes == 2 and view.samples == DRAW, "all totals")
        first.stop()
        eventually(lambda: not learner.connected and not shard.connected, "it is gone")
        with serving(tmp_path, config, port=first.server.port) as second:
            eventually(lambda: learner.connected and shard.connected, "they are back")
            shard.episodes([3.0], [30])
            view = seen(learner, lambda view: view.episodes == 3, "new episodes on top")
            assert (view.env_steps, view.samples) == (64, DRAW)
            assert view.recent_returns == (1.0, 2.0, 3.0)
            assert glance(second.address).view.env_steps == 64


def test_without_a_directory_a_learner_draws_one_tolerance_more_and_no_further(tmp_path: Path) -> None:
    config = make_config(samples_per_insert=1.0)
    with ExitStack() as stack:
        directory = stack.enter_context(serving(tmp_path, config))
        shard = stack.enter_context(member(directory.address))
        learner = stack.enter_context(follower(directory.address))
        insert(shard, 64)
        view = seen(learner, lambda view: not view.throttled_by, "leave")
        directory.stop()
        eventually(lambda: not learner.connected, "it is gone")
        last = learner.view()
        assert last is not None
        while learner.acquire(1, 0.0):
            pass
        assert learner.drawn == last.sample_allowance + last.outage_samples
        assert last.outage_samples == view.outage_samples > 0
        assert learner.wait_reason == "connection"


def test_another_run_is_refused_in_words(tmp_path: Path) -> None:
    foreign = make_handshake("sampler-9", run_id="run-2")
    with serving(tmp_path) as directory:
        with (
            member(directory.address, handshake=foreign) as shard,
            follower(directory.address, handshake=foreign) as learner,
        ):
            for client in (shard, learner):
                assert not client.acquire(1, WAIT_S)
                assert isinstance(client.fatal, HandshakeError)
                assert "run id 'run-2' against 'run-1'" in str(client.fatal)


def test_many_shards_all_get_leave_and_are_all_seen(tmp_path: Path) -> None:
    config = make_config(samples_per_insert=1.0)
    with ExitStack() as stack:
        directory = stack.enter_context(serving(tmp_path, config))
        learner = stack.enter_context(follower(directory.address))
        shards = [
            stack.enter_context(member(directory.address, make_shard(f"sampler-{index:02}")))
            for index in range(20)
        ]
        for shard in shards:
            assert shard.acquire(FRAGMENT, WAIT_S)
            shard.report(make_status(FRAGMENT))
        cold = ShardIdentity("cold-0", "127.0.0.1:9000", "cold")
        stack.enter_context(member(directory.address, cold)).report(make_status(0, mass=5.0, count=5))
        view = seen(learner, lambda view: view.count == 20 * FRAGMENT + 5, "everything")
        assert [shard.shard_id for shard in view.shards] == [
            "cold-0",
            *(f"sampler-{i:02}" for i in range(20)),
        ]
        assert view.env_steps == 20 * FRAGMENT


def raw_shard_stream(address: str, *messages: directory_pb2.JoinShardRequest) -> tuple[grpc.StatusCode, str]:
    """Send messages on a stream that stays open; how the server ends it."""
    done = threading.Event()

    def requests() -> Iterator[directory_pb2.JoinShardRequest]:
        yield from messages
        done.wait(WAIT_S)

    with open_channel(address) as channel:
        stub: Any = DirectoryServiceStub(channel)  # type: ignore[no-untyped-call]
        call = stub.JoinShard(requests(), timeout=WAIT_S)
        try:
            with pytest.raises(grpc.RpcError):
                for _ in call:
                    pass
        finally:
            done.set()
        return call.code(), call.details()


def join_message(**changes: Any) -> directory_pb2.JoinShardRequest:
    join = join_to_proto(make_shard(), make_handshake())
    for name, value in changes.items():
        setattr(join, name, value)
    return directory_pb2.JoinShardRequest(join=join)


def report_message(**fields: Any) -> directory_pb2.JoinShardRequest:
    return directory_pb2.JoinShardRequest(report=directory_pb2.ShardReport(**fields))


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([report_message()], "first message of a stream must be ShardJoin"),
        ([join_message(), join_message()], "opened once"),
        ([join_message(shard_id="")], "shard_id of 0 bytes"),
        ([join_message(shard_id="x" * 129)], "shard_id of 129 bytes"),
        ([join_message(tier=0)], "tier 0 is unknown"),
        ([join_message(fragment_transitions=0)], "has a sampler that inserts"),
        ([join_message(), report_message(mass=float("nan"))], "mass nan"),
        ([join_message(), report_message(mass=-1.0)], "mass -1.0"),
    ],
    ids=["no-join", "two-joins", "no-name", "long-name", "no-tier", "no-fragment", "nan", "negative"],
)
def test_a_broken_contract_is_invalid_argument_in_words(
    tmp_path: Path, messages: list[directory_pb2.JoinShardRequest], words: str
) -> None:
    with serving(tmp_path) as directory:
        code, details = raw_shard_stream(directory.address, *messages)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert words in details
        with member(directory.address) as shard:  # it stays healthy
            assert shard.acquire(FRAGMENT, WAIT_S)


def test_a_shard_whose_reports_are_refused_again_and_again_gives_up(tmp_path: Path) -> None:
    with serving(tmp_path) as directory, member(directory.address) as shard:
        shard.report(make_status(16, mass=float("nan")))
        assert not shard.acquire(10**9, WAIT_S)
        assert isinstance(shard.fatal, InvalidDataError)
        assert "mass nan" in str(shard.fatal)


def test_a_disk_that_takes_nothing_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "replay").write_text("a file where the folder should be")
    with serving(tmp_path) as directory, member(directory.address) as shard:
        assert shard.acquire(FRAGMENT, WAIT_S)
    assert (tmp_path / "replay").is_file()


def test_a_peer_that_says_nothing_is_cut(tmp_path: Path) -> None:
    with serving(tmp_path, handshake_s=0.2) as directory:
        code, details = raw_shard_stream(directory.address)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no join" in details


def test_a_directory_that_drains_says_so_and_has_saved(tmp_path: Path) -> None:
    with serving(tmp_path) as directory:
        with member(directory.address) as shard:
            insert(shard, 32)
            eventually(lambda: glance(directory.address).view.env_steps == 32, "all is counted")
            directory.endpoint.close()
            assert raw_shard_stream(directory.address, join_message()) == (
                grpc.StatusCode.UNAVAILABLE,
                "the directory of replay is draining",
            )
    with serving(tmp_path) as successor:
        assert glance(successor.address).view.env_steps == 32


def test_a_glance_shows_every_shard_and_learner_and_the_metrics_say_how_many(tmp_path: Path) -> None:
    with serving(tmp_path) as directory:
        with member(directory.address) as shard, follower(directory.address) as learner:
            shard.report(make_status(16, fill_ratio=0.25, newest_version=3, evicted=0, drawn=5))
            learner.report(newest_version=4)
            eventually(lambda: "sampler-0" in glance(directory.address).shards, "the shard is there")
            eventually(lambda: glance(directory.address).learners == {"learner-0": 4}, "the learner")
            eventually(lambda: glance(directory.address).shards["sampler-0"].fill_ratio == 0.25, "its state")
            assert glance(directory.address).shards["sampler-0"] == make_status(
                16, fill_ratio=0.25, newest_version=3, drawn=5
            )
            registry = directory.metrics.registry
            eventually(
                lambda: registry.get_sample_value("headrace_replay_members", {"tier": "hot"}) == 1.0,
                "the metric follows",
            )
            assert registry.get_sample_value("headrace_replay_members", {"tier": "cold"}) == 0.0


def test_a_second_process_of_a_learner_takes_over_and_the_first_one_ends_in_words(tmp_path: Path) -> None:
    with serving(tmp_path) as directory, follower(directory.address) as old:
        seen(old, lambda view: True, "anything")
        with follower(directory.address) as new:
            seen(new, lambda view: True, "anything")
            old.report(newest_version=1)
            eventually(lambda: old.fatal is not None, "the first one is told")
            assert "superseded by 2" in str(old.fatal)
            assert new.fatal is None
