"""What is sunk is stored once, drawn only when no hot tier has it, and read back as it was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cold import (
    GAMMA,
    ITEMS,
    N_STEP,
    SAMPLER,
    WAIT_S,
    B,
    Partition,
    T,
    made,
    make_config,
    settle,
    sink_all,
    sinking,
    spec,
    wait_for,
)
from streams import Stream

from headrace.cold_accounts import read_cold_accounts
from headrace.envs.validation import FragmentCheck
from headrace.local.redis import LocalRedis
from headrace.testing.proxy import Proxy
from headrace.types import PRIORITY, Fragment, Sample, SamplerIdentity

Start = Callable[..., Partition]


@pytest.fixture
def start(redis_server: LocalRedis) -> Iterator[Start]:
    """Start partitions that end with the test."""
    partitions: list[Partition] = []

    def make(**changes: Any) -> Partition:
        partitions.append(Partition(redis_server.url, **changes))
        return partitions[-1].wait_ready()

    yield make
    for partition in partitions:
        partition.stop()


def draw_all(partition: Partition, num_items: int) -> Sample:
    sample = partition.shard.sample(num_items)
    assert sample is not None
    return sample


def assert_right(sample: Sample, steps: Stream, first: int = 0) -> None:
    """Every item is what the stream says; ``first``: chunk number of the stream's first fragment."""
    for place, key in enumerate(sample.keys):
        chunk, item = divmod(int(key), ITEMS)
        step, lane = (chunk - first) * T + item // B, item % B
        total, discount, following = steps.target(step, lane, N_STEP, GAMMA)
        assert sample.columns["observation"][place, 0] == steps.observation[step, lane]
        assert sample.columns["n_step_return"][place] == pytest.approx(total, rel=1e-5)
        assert sample.columns["discount"][place] == pytest.approx(discount)
        if discount:
            assert sample.columns["next_observation"][place, 0] == following
        assert sample.versions[place] == 1 + chunk - first


def test_what_is_released_is_drawn_as_it_was_across_fragments(start: Start) -> None:
    partition = start()
    steps, fragments = made(12, seed=3)
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments)
        settle(sender, 11)
        assert partition.totals() == {"received": 12 * ITEMS, "standby": 12 * ITEMS}
        assert partition.shard.sample(10) is None
        sender.release(9)
        wait_for(lambda: partition.totals().get("active") == 10 * ITEMS)
        sample = draw_all(partition, 2000)
    assert set(np.unique(sample.keys)) == set(range(10 * ITEMS))
    assert_right(sample, steps)
    assert partition.shard.stats().count == 10 * ITEMS
    np.testing.assert_allclose(sample.probabilities, 1 / (10 * ITEMS))


def test_sequences_run_on_through_the_chunks_that_follow(start: Start) -> None:
    partition, length = start(), 3 * T
    steps, fragments = made(8, seed=4)
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments)
        settle(sender, 7)
        sender.release(7)
        wait_for(lambda: partition.totals().get("active") == 8 * ITEMS)
        sample = partition.shard.sample(300, length)
    assert sample is not None
    for place, key in enumerate(sample.keys.tolist()):
        rows = steps.sequence(key // B, key % B, length)
        seen = sample.columns["observation"][place, :, 0].tolist()
        assert seen == [steps.observation[row, key % B] for row in rows] + [0] * (length - len(rows))
        assert sample.columns["valid"][place].sum() == len(rows)
    assert sample.columns["valid"].sum(1).max() > T


def test_the_last_steps_wait_for_the_fragment_that_follows(start: Start) -> None:
    partition = start()
    _, fragments = made(2, seed=1)
    endless = [
        replace(
            one,
            columns={
                **one.columns,
                "terminated": np.zeros((T, B), np.bool_),
                "truncated": np.zeros((T, B), np.bool_),
                "final_index": np.zeros(0, np.int32),
                "final_observation": np.zeros((0, 1), np.float32),
            },
        )
        for one in fragments
    ]
    with sinking(partition.server.address) as sender:
        sink_all(sender, endless[:1])
        settle(sender, 0)
        sender.release(0)
        wait_for(lambda: partition.shard.stats().count == ITEMS - (N_STEP - 1) * B)
        sink_all(sender, endless[1:])
        wait_for(lambda: partition.shard.stats().count == ITEMS)


def test_newest_priorities_come_with_the_release(start: Start) -> None:
    partition = start(config=make_config(selector="prioritized", priority_exponent=1.0))
    _, fragments = made(3, priority=2.0)
    priorities = np.arange(ITEMS, dtype=np.float32)
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments)
        settle(sender, 2)
        sender.release(0)
        wait_for(lambda: partition.shard.stats().mass == 2.0 * ITEMS)
        sender.release(1, priorities)
        wait_for(lambda: partition.shard.stats().mass == 2.0 * ITEMS + priorities.sum())
    outcome = partition.shard.update_priorities(np.array([ITEMS, 99 * ITEMS]), np.array([5.0, 1.0]))
    assert (outcome.applied, outcome.ignored) == (1, 1)
    assert partition.shard.stats().mass == 2.0 * ITEMS + priorities.sum() + 5.0


def test_what_comes_again_is_stored_once(start: Start) -> None:
    partition = start()
    _, fragments = made(40)
    with Proxy("127.0.0.1", partition.server.port) as proxy, sinking(proxy.address) as sender:
        for begin in range(0, 40, 10):
            sink_all(sender, fragments[begin : begin + 10])
            sender.release(begin + 4)
            proxy.cut()
            proxy.resume()
        settle(sender, 39)
        wait_for(lambda: partition.totals().get("active") == 35 * ITEMS)  # a release outlives the cut
        assert partition.totals() == {"received": 40 * ITEMS, "standby": 5 * ITEMS, "active": 35 * ITEMS}


def test_a_gap_is_taken_as_such_and_cuts_the_items_before_it(start: Start) -> None:
    partition = start()
    _, fragments = made(6)
    with sinking(partition.server.address) as sender:
        sink_all(sender, [fragments[number] for number in (0, 1, 4, 5)])
        settle(sender, 5)
        sender.release(4)
        wait_for(lambda: partition.totals().get("active") == 3 * ITEMS)
        assert partition.shard.stats().count == 3 * ITEMS
        sample = draw_all(partition, 500)
    assert set(np.unique(sample.keys)) == set(range(3 * ITEMS))


def test_a_sampler_that_says_goodbye_leaves_everything_drawable(start: Start) -> None:
    partition = start()
    _, fragments = made(4)
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments)
        assert sender.drain("done", WAIT_S)
    wait_for(lambda: partition.totals() == {"received": 4 * ITEMS, "active": 4 * ITEMS})
    assert partition.shard.stats().count == 4 * ITEMS


def test_a_new_incarnation_means_that_the_old_one_is_dead(start: Start) -> None:
    partition = start()
    _, fragments = made(4)
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments)
        settle(sender, 3)
    assert partition.totals() == {"received": 4 * ITEMS, "standby": 4 * ITEMS}
    newer = SamplerIdentity("sampler-0", 1)
    _, more = made(2, sampler=newer)
    with sinking(partition.server.address, newer) as sender:
        sink_all(sender, more)
        settle(sender, 1)
        assert partition.totals() == {
            "received": 6 * ITEMS, "active": 4 * ITEMS, "standby": 2 * ITEMS,
        }  # fmt: skip
        with sinking(partition.server.address) as old:
            wait_for(lambda: old.fatal is not None)


def test_without_its_stream_a_sampler_is_given_up_and_may_come_back(start: Start) -> None:
    partition = start(grace_s=0.2)
    _, fragments = made(4)
    with Proxy("127.0.0.1", partition.server.port) as proxy, sinking(proxy.address) as sender:
        sink_all(sender, fragments)
        settle(sender, 3)
        sender.release(0)
        wait_for(lambda: partition.totals().get("active") == ITEMS)
        proxy.cut()
        wait_for(lambda: partition.totals() == {"received": 4 * ITEMS, "active": 4 * ITEMS})
        proxy.resume()
        wait_for(lambda: partition.totals() == {"received": 4 * ITEMS, "active": ITEMS, "standby": 3 * ITEMS})
        assert partition.shard.stats().count <= ITEMS


def test_priorities_outlive_a_sampler_that_was_given_up_and_came_back(start: Start) -> None:
    partition = start(grace_s=0.2, config=make_config(selector="prioritized", priority_exponent=1.0))
    _, fragments = made(2, priority=3.0)
    with Proxy("127.0.0.1", partition.server.port) as proxy, sinking(proxy.address) as sender:
        sink_all(sender, fragments)
        settle(sender, 1)
        proxy.cut()
        wait_for(lambda: partition.shard.stats().mass == 3.0 * 2 * ITEMS)
        partition.shard.update_priorities(np.array([0, ITEMS]), np.array([10.0, 20.0]))
        proxy.resume()
        wait_for(lambda: partition.shard.stats().mass == 0.0)
        sender.release(1)
        wait_for(lambda: partition.totals().get("active") == 2 * ITEMS)
        assert sender.drain("done", WAIT_S)
    wait_for(lambda: partition.shard.stats().count == 2 * ITEMS)
    assert partition.shard.stats().mass == 3.0 * (2 * ITEMS - 2) + 30.0


@pytest.mark.slow
def test_the_oldest_leave_within_the_bytes_at_ten_times_the_capacity(
    start: Start, redis_server: LocalRedis
) -> None:
    capacity = 2**18
    partition = start(config=make_config(cold_capacity_bytes=capacity))
    _, fragments = made(200, seed=5)
    rounds = itertools.count()
    with sinking(partition.server.address) as sender:
        sunk = 0
        while partition.cold.sink.counts().nbytes < 10 * capacity:
            base = 200 * next(rounds)
            batch = [
                replace(one, id=replace(one.id, sequence=base + number))
                for number, one in enumerate(fragments)
            ]
            sink_all(sender, batch)
            sunk += len(batch)
            sender.release(sunk - 1)
            settle(sender, sunk - 1)
            assert partition.shard.stats().nbytes <= 1.02 * capacity
    totals = partition.totals()
    assert totals["received"] == sunk * ITEMS
    assert totals["evicted"] > 8 * totals["active"]
    keys = partition.cold.store._client.dbsize()
    assert keys == totals["active"] // ITEMS + 1  # the index
    newest = draw_all(partition, 200).keys // ITEMS
    assert newest.min() >= sunk - totals["active"] // ITEMS


def test_what_is_older_than_so_many_updates_leaves(start: Start) -> None:
    partition = start(config=make_config(capacity_updates=5))
    _, fragments = made(20)  # the version rises by one a fragment
    with sinking(partition.server.address) as sender:
        sink_all(sender, fragments)
        settle(sender, 19)
        sender.release(19)
        wait_for(lambda: partition.totals().get("evicted") == 14 * ITEMS)
        partition.shard.set_version(22)
        wait_for(lambda: partition.totals().get("evicted") == 16 * ITEMS)


def test_bad_fragments_stay_out_and_are_counted(start: Start) -> None:
    partition = start(check=FragmentCheck(spec(), make_config().validation, stored=True))
    _, fragments = made(1)
    rng = np.random.default_rng(0)
    observation = rng.normal(size=(T, B, 4)).astype(np.float32) * 0.1
    good: dict[str, Any] = {
        **fragments[0].columns,
        "observation": observation,
        "action": np.zeros((T, B), np.int64),
        "bootstrap_observation": observation[0],
        "final_observation": np.zeros((len(fragments[0].columns["final_index"]), 4), np.float32),
    }
    nan, negative = observation.copy(), np.full((T, B), -1.0, np.float32)
    nan[0, 0, 0] = np.nan

    def fragment(sequence: int, **changed: Any) -> Fragment:
        identity = replace(fragments[0].id, sequence=sequence)
        return replace(fragments[0], id=identity, columns={**good, **changed})

    sunk = [
        fragment(0),
        fragment(1, observation=nan),
        fragment(2, priority=negative),
        fragment(3, reward=np.zeros((T - 1, B), np.float32)),
        fragment(4),
    ]
    with sinking(partition.server.address) as sender:
        sink_all(sender, sunk)
        settle(sender, 4)
        wait_for(lambda: sum(sender.refused.values()) == 3)  # refusals may be said after it
    assert sender.refused == {"non_finite": 1, "out_of_range": 1, "wrong_shape": 1}
    assert partition.totals() == {"received": 2 * ITEMS, "standby": 2 * ITEMS}
    assert PRIORITY in good


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_restarted_service_goes_on_with_what_redis_holds(start: Start, tmp_path: Any, end: str) -> None:
    first = start(run_dir=tmp_path)
    steps, fragments = made(8, seed=7)
    with sinking(first.server.address) as sender:
        sink_all(sender, fragments[:6])
        settle(sender, 5)
        sender.release(3)
        wait_for(lambda: first.totals().get("active") == 4 * ITEMS)
        before = first.totals()
        port = first.server.port
        if end == "stopped":
            first.stop()
        else:
            first.server.stop(0.0)  # nothing else is told
        second = start(run_dir=tmp_path, port=port)
        assert second.totals() == before
        assert_right(draw_all(second, 500), steps)
        sink_all(sender, fragments[6:])
        settle(sender, 7)
        wait_for(lambda: second.totals().get("received") == 8 * ITEMS)
    accounts = read_cold_accounts(tmp_path)
    assert [(row.partition, row.sampler) for row in accounts] == [(0, SAMPLER)]
    assert accounts[0].counts.balanced
    assert accounts[0].counts.received == 8 * ITEMS


@pytest.mark.parametrize("restore", ["with", "without"])
def test_a_resumed_run_takes_up_or_drops_what_redis_holds(
    start: Start, redis_server: LocalRedis, tmp_path: Any, restore: str
) -> None:
    config = make_config(restore=restore)
    first = start(run_dir=tmp_path, config=config, session="start-1")
    _, fragments = made(4)
    with sinking(first.server.address) as sender:
        sink_all(sender, fragments)
        assert sender.drain("done", WAIT_S)
    first.stop()
    redis_server.stop()
    redis_server.start()
    redis_server.wait_ready(30.0)
    second = start(run_dir=tmp_path, config=config, session="start-2")
    stored, evicted = (4 * ITEMS, 0) if restore == "with" else (0, 4 * ITEMS)
    totals = second.totals()
    assert (totals.get("active", 0), totals.get("evicted", 0)) == (stored, evicted)
    ((kind, fields),) = second.events
    assert kind == "cold_tier_restored"
    assert (fields["stored"], fields["dropped"], fields["reason"]) == (stored, evicted, "the run was resumed")
    assert second.shard.stats().count == stored
