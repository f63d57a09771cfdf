"""The hot tier sinks into a real cold one: copies stand by, are released, and gaps are counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cold import DIGEST, GAMMA, ITEMS, N_STEP, SAMPLER, Partition, made, make_config, own, wait_for

from headrace.clients.fragments import FragmentSender
from headrace.local.redis import LocalRedis
from headrace.replay.shard import HotShard
from headrace.types import PRIORITY, Fragment
from services.sampler.sinker import Sinker


@pytest.fixture
def partition(redis_server: LocalRedis, tmp_path: Path) -> Iterator[Partition]:
    served = Partition(redis_server.url, run_dir=tmp_path).wait_ready()
    yield served
    served.stop()


def hot_shard(chunks: int, like: Fragment) -> HotShard:
    """A shard that holds about ``chunks`` chunks."""
    from headrace.replay.shard import bytes_per_chunk

    config = make_config(selector="prioritized")
    replay = config.replay.model_copy(
        update={"hot_capacity_bytes": chunks * bytes_per_chunk(config.replay, like)}
    )
    return HotShard(replay, n_step=N_STEP, gamma=GAMMA, rng=np.random.default_rng(0))


def sender_to(address: str, fragment: Fragment) -> FragmentSender:
    return FragmentSender(
        address,
        replace(own(), peer=str(SAMPLER)),
        SAMPLER,
        fragment_bytes=2 * fragment.nbytes,
        fragment_transitions=ITEMS,
        gaps=True,
    )


def fresh(count: int) -> list[Fragment]:
    """Fragments as an actor makes them: their priorities come apart."""
    _, fragments = made(count)
    return [
        replace(
            fragment,
            config_digest=DIGEST,
            columns={name: column for name, column in fragment.columns.items() if name != PRIORITY},
        )
        for fragment in fragments
    ]


def test_copies_stand_by_until_the_hot_tier_lets_them_go(partition: Partition) -> None:
    fragments = fresh(8)
    shard = hot_shard(4, fragments[0])
    sinker = Sinker(shard, sender_to(partition.server.address, fragments[0]))
    sinker.start()
    for number, fragment in enumerate(fragments):
        sinker.inserted(shard.insert(fragment, np.full(fragment.columns["reward"].shape, 2.0, np.float32)))
        wait_for(lambda number=number: partition.shard.totals().received == (number + 1) * ITEMS)
    hot = shard.stats().stored
    wait_for(lambda: partition.shard.totals().standby == hot)
    totals = partition.shard.totals()
    assert (totals.active, totals.received) == (8 * ITEMS - hot, 8 * ITEMS)
    assert sinker.evicted_unsunk == 0
    assert sinker.leave("test", 10.0)
    wait_for(lambda: partition.shard.totals().active == 8 * ITEMS)
    sinker.close()


def test_what_leaves_before_it_could_be_sunk_is_skipped_and_counted(partition: Partition) -> None:
    fragments = fresh(9)
    shard = hot_shard(3, fragments[0])
    sinker = Sinker(shard, sender_to(partition.server.address, fragments[0]))
    for fragment in fragments[:6]:  # nobody sinks yet
        sinker.inserted(shard.insert(fragment))
    skipped = sinker.evicted_unsunk
    assert skipped == shard.stats().evicted > 0
    sinker.start()
    for number, fragment in enumerate(fragments[6:], start=7):
        wait_for(lambda number=number: partition.shard.totals().received == (number - 1) * ITEMS - skipped)
        sinker.inserted(shard.insert(fragment))
    assert sinker.leave("test", 10.0)
    assert sinker.error is None
    assert sinker.evicted_unsunk == skipped
    wait_for(lambda: partition.shard.totals().active == 9 * ITEMS - skipped)
    sinker.close()
