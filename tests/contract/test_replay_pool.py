"""Many served shards drawn from as one buffer: the law, the ways home, and shards that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from replay_nodes import MAX_BYTES, OWN, WAIT_S, MadeUpShard, Serve, hot_shard, made_up_sample, until

from headrace.clients.replay_pool import PoolDraw, ShardPool
from headrace.clients.shard import ShardClient
from headrace.errors import HandshakeError
from headrace.rpc.handshake import Handshake
from headrace.testing.proxy import Proxy
from headrace.types import Sample

MakePool = Callable[..., ShardPool]


@dataclass(frozen=True)
class Entry:
    """A line of the directory."""

    shard_id: str
    address: str
    mass: float = 64.0
    count: int = 64
    tier: str = "hot"


@pytest.fixture
def make_pool() -> Iterator[MakePool]:
    pools: list[ShardPool] = []

    def make(handshake: Handshake = OWN, check: Any = lambda _sample: "", **changes: Any) -> ShardPool:
        options: dict[str, Any] = {"exponent": 1.0, "rng": np.random.default_rng(0), **changes}
        pools.append(
            ShardPool(
                lambda address: ShardClient(address, handshake, max_bytes=MAX_BYTES, check=check), **options
            )
        )
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def pool(make_pool: MakePool) -> ShardPool:
    return make_pool()


def drawn(pool: ShardPool, number: int) -> PoolDraw:
    draw = pool.draw(number, newest_version=1, timeout_s=WAIT_S)
    assert draw is not None
    assert len(draw.versions) == number
    return draw


def ready(pool: ShardPool, *entries: Entry) -> None:
    """List shards, and wait until all of them can be drawn from."""
    pool.set_shards(entries)
    until(
        lambda: {origin.client.address for origin in drawn(pool, 64).origins} >= {e.address for e in entries}
    )


def sizes(draw: PoolDraw) -> dict[str, int]:
    found: dict[str, int] = {}
    for origin in draw.origins:
        found[origin.client.address] = found.get(origin.client.address, 0) + len(origin.keys)
    return found


def test_two_shards_are_drawn_from_as_one_buffer(served: Serve, pool: ShardPool) -> None:
    first, second = served(hot_shard(steps=8)), served(hot_shard(steps=24))
    ready(pool, Entry("a", first.address, 32.0, 32), Entry("b", second.address, 96.0, 96))
    draw = drawn(pool, 20_000)
    assert sizes(draw)[second.address] / 20_000 == pytest.approx(0.75, abs=0.02)
    assert draw.importance_weights == pytest.approx(1.0)  # equal priorities: nothing to correct
    assert draw.columns["observation"].shape == (20_000, 1)


def test_rows_belong_to_their_keys_in_whatever_order(served: Serve, pool: ShardPool) -> None:
    ready(pool, *(Entry(name, served().address) for name in "abc"))
    draw = drawn(pool, 1000)
    for origin in draw.origins:
        assert np.array_equal(draw.columns["observation"][origin.rows, 0] - 1, origin.keys)
    rows = np.concatenate([origin.rows for origin in draw.origins])
    assert np.array_equal(np.sort(rows), np.arange(1000))
    assert not np.array_equal(rows, np.arange(1000))  # minibatches are not of one shard alone


def test_items_of_several_answers_are_one_draw(served: Serve, pool: ShardPool) -> None:
    node = served(max_answer_bytes=1000)  # 50 items of 20 bytes
    ready(pool, Entry("a", node.address))
    draw = drawn(pool, 500)
    assert len(draw.origins) > 1
    for origin in draw.origins:
        assert np.array_equal(draw.columns["observation"][origin.rows, 0] - 1, origin.keys)


def test_priorities_go_back_to_the_shard_and_item_they_belong_to(served: Serve, pool: ShardPool) -> None:
    nodes = [served(), served()]
    ready(pool, *(Entry(node.address, node.address) for node in nodes))
    draw = drawn(pool, 100)
    chosen = draw.columns["observation"][:, 0] < 33  # keys 0 to 31 of either
    pool.update_priorities(draw, np.where(chosen, 3.0, 1.0))
    until(lambda: pool.priorities["applied"] == 100)
    for node in nodes:
        keys = np.concatenate([o.keys for o in draw.origins if o.client.address == node.address])
        raised = len({key for key in keys if key < 32})
        assert node.shard.stats().mass == pytest.approx(64 + 2.0 * raised)


def test_priorities_of_a_shard_that_has_left_are_counted(served: Serve, pool: ShardPool) -> None:
    ready(pool, Entry("a", served().address))
    draw = drawn(pool, 10)
    pool.set_shards([])
    pool.update_priorities(draw, np.ones(10))
    assert pool.priorities == {"unsent": 10}


def test_importance_weights_use_the_probability_that_was_really_used(served: Serve, pool: ShardPool) -> None:
    first, second = served(), served()
    first.shard.update_priorities(np.arange(64), np.full(64, 3.0))
    # The directory still says that both are equal: every item is as likely, and the weights must say so.
    pool.set_shards([Entry("a", first.address), Entry("b", second.address)])
    until(lambda: all(member.client.ready for member in pool._members.values()))
    assert drawn(pool, 100).importance_weights == pytest.approx(1.0)


def test_a_shard_that_dies_is_replaced_by_the_others_and_weights_agree(
    served: Serve, pool: ShardPool
) -> None:
    nodes = [served(), served(), served()]
    ready(pool, *(Entry(node.address, node.address) for node in nodes))
    nodes[2].server.stop(0.0)
    draw = drawn(pool, 1000)
    assert set(sizes(draw)) == {nodes[0].address, nodes[1].address}
    assert sizes(draw)[nodes[0].address] == pytest.approx(500, abs=100)
    assert draw.importance_weights == pytest.approx(1.0)


def test_a_shard_that_dies_in_the_middle_of_a_draw_costs_nothing_but_its_part(
    served: Serve, pool: ShardPool
) -> None:
    good, bad = served(), served(hot_shard(steps=8, lanes=64), message_bytes=2**10)
    with Proxy("127.0.0.1", bad.server.port) as proxy:
        ready(pool, Entry("good", good.address, 512.0), Entry("bad", proxy.address, 512.0))
        before = proxy.forwarded_bytes
        proxy.delay(0.5)  # a little of the answer gets through before the end
        cut = _when(lambda: proxy.forwarded_bytes > before + 2000, proxy.cut)
        draw = drawn(pool, 20_000)
        cut()
    assert set(sizes(draw)) == {good.address}
    assert pool.lost == {"bad": 1}
    assert np.array_equal(np.sort(np.concatenate([o.rows for o in draw.origins])), np.arange(20_000))


def _when(condition: Callable[[], bool], act: Callable[[], None]) -> Callable[[], None]:
    """Do something as soon as something is so, in a thread; returns what waits for that."""

    def run() -> None:
        until(condition)
        act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return lambda: thread.join(WAIT_S)


def test_a_shard_that_says_nothing_is_taken_for_lost(served: Serve, make_pool: MakePool) -> None:
    heard: list[str] = []
    pool = make_pool(silence_s=0.3, on_event=lambda kind, _sentence: heard.append(kind))
    good, silent = served(), served()
    with Proxy("127.0.0.1", silent.server.port) as proxy:
        ready(pool, Entry("good", good.address), Entry("silent", proxy.address))
        proxy.pause()
        assert set(sizes(drawn(pool, 200))) == {good.address}
        assert heard == ["shard_silent"]
        proxy.resume()
        until(lambda: proxy.address in sizes(drawn(pool, 200)))


def test_a_shard_that_is_back_is_drawn_from_again(served: Serve, pool: ShardPool) -> None:
    first = served()
    ready(pool, Entry("a", first.address))
    first.server.stop(0.0)
    assert pool.draw(10, 0, timeout_s=0.1) is None
    assert pool.wait_seconds["connection"] > 0.0
    served(address=first.address)
    drawn(pool, 10)


def test_nothing_to_draw_is_no_error_and_says_what_it_waits_for(served: Serve, pool: ShardPool) -> None:
    assert pool.draw(10, 0, timeout_s=0.05) is None
    assert set(pool.wait_seconds) == {"empty"}
    node = served(hot_shard(steps=0))
    pool.set_shards([Entry("a", node.address)])  # the directory is behind
    assert pool.draw(10, 0, timeout_s=0.5) is None
    assert set(pool.wait_seconds) <= {"empty", "connection", "sample"}


def test_an_empty_shard_leaves_its_part_to_the_others(served: Serve, pool: ShardPool) -> None:
    full, empty = served(), served(hot_shard(steps=0))
    pool.set_shards([Entry("full", full.address), Entry("empty", empty.address)])
    until(lambda: all(member.client.ready for member in pool._members.values()))
    draw = drawn(pool, 100)
    assert set(sizes(draw)) == {full.address}
    assert draw.importance_weights == pytest.approx(1.0)


def test_items_of_a_draw_that_ran_out_are_part_of_the_next_one(served: Serve, pool: ShardPool) -> None:
    node = served(hot_shard(max_times_sampled=1))
    pool.set_shards([Entry("a", node.address)])
    until(lambda: pool.draw(100, 0, timeout_s=0.05) is None and node.shard.stats().drawn == 64)
    draws = [drawn(pool, 40)]
    assert pool.draw(40, 0, timeout_s=0.0) is None
    draws.append(drawn(pool, 24))
    seen = np.concatenate([draw.columns["observation"][:, 0] for draw in draws])
    assert np.array_equal(np.sort(seen), np.arange(1, 65))  # each item once, none lost
    pool.update_priorities(draws[1], np.ones(24))
    until(lambda: pool.priorities.total() == 24)


def test_a_shard_whose_answers_are_refused_is_named_and_replaced(served: Serve, make_pool: MakePool) -> None:
    heard: list[str] = []

    def check(sample: Sample) -> str:
        return "" if np.isfinite(sample.columns["observation"]).all() else "observation is not finite"

    pool = make_pool(check=check, on_event=lambda _kind, sentence: heard.append(sentence))
    good = served(MadeUpShard(lambda number: made_up_sample(number, 1)))
    bad = served(MadeUpShard(lambda number: made_up_sample(number, 1, value=np.nan)))
    pool.set_shards([Entry("good", good.address), Entry("bad", bad.address)])
    until(lambda: all(member.client.ready for member in pool._members.values()))
    for _ in range(3):
        assert set(sizes(drawn(pool, 100))) == {good.address}
    assert pool.refused == {"bad": 3}
    assert heard == ["shard bad: observation is not finite"]  # once, not for each
    pool.set_shards([Entry("bad", bad.address)])
    assert pool.draw(10, 0, timeout_s=0.1) is None
    assert pool.wait_seconds["refused"] > 0.0


def test_shards_that_leave_and_come_are_drawn_from_as_listed(served: Serve, pool: ShardPool) -> None:
    first, second = served(), served()
    ready(pool, Entry("a", first.address))
    ready(pool, Entry("a", first.address), Entry("b", second.address, tier="cold"))
    assert pool.samples["cold"] > 0
    pool.set_shards([Entry("b", second.address, tier="cold")])
    assert set(sizes(drawn(pool, 50))) == {second.address}


def test_a_shard_of_another_run_is_fatal(served: Serve, make_pool: MakePool) -> None:
    pool = make_pool(handshake=Handshake(run_id="other", config_digest="digest"))
    pool.set_shards([Entry("a", served().address)])
    until(lambda: pool.fatal is not None)
    assert isinstance(pool.fatal, HandshakeError)


def test_drift_is_the_distance_between_the_masses_in_use_and_the_true_ones(
    served: Serve, pool: ShardPool
) -> None:
    pool.set_shards([Entry("a", served().address, 1.0), Entry("b", served().address, 1.0)])
    assert pool.drift_from({"a": 1.0, "b": 1.0}) == 0.0
    assert pool.drift_from({"a": 3.0, "b": 1.0}) == pytest.approx(0.25)
    assert pool.drift_from({"c": 1.0}) == 1.0
