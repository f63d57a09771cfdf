"""A hot shard keeps to its bytes, whatever comes in, and uses them."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from streams import Stream, constant_stream, stream

from headrace.config.sections import ReplayConfig
from headrace.replay.shard import HotShard, bytes_per_chunk
from headrace.types import Fragment, FragmentId, PolicyVersion

CAPACITY = 2**21


def shard(capacity: int = CAPACITY) -> HotShard:
    replay = ReplayConfig(hot_capacity_bytes=capacity, selector="prioritized")
    return HotShard(replay, n_step=3, gamma=0.9, rng=np.random.default_rng(0))


def always_truncated(steps: int, lanes: int) -> Stream:
    """Episodes of one step, cut by a time limit: as many last observations as there are steps."""
    plain = constant_stream(steps, lanes)
    return replace(plain, truncated=np.ones_like(plain.truncated))


def endless(fragments: list[Fragment], count: int) -> Iterator[Fragment]:
    """The same rows again and again, as a sampler would number them."""
    for index in range(count):
        fragment = fragments[index % len(fragments)]
        yield replace(
            fragment,
            id=FragmentId(fragment.id.sampler, 1000 + index),
            policy_version=PolicyVersion(1, 1000 + index),
            produced_through=1000 + index,
        )


@pytest.mark.parametrize("ends", ["some", "none", "all"])
def test_ten_times_the_capacity_takes_the_bytes_it_may_and_no_more(ends: str) -> None:
    make = {"some": lambda s, b: stream(s, b, seed=1), "none": constant_stream, "all": always_truncated}
    fragments = make[ends](512, 8).fragments(16)
    warm = shard()
    warm.insert(fragments[0])  # what is loaded or compiled only once is no part of a shard
    del warm
    room = CAPACITY // bytes_per_chunk(ReplayConfig(selector="prioritized"), fragments[0])
    sizes = np.zeros(10 * room, np.int64)
    gc.collect()
    tracemalloc.start()
    tier = shard()
    before = tracemalloc.get_traced_memory()[0]
    for turn, fragment in enumerate(endless(fragments, 10 * room)):
        tier.insert(fragment)
        sizes[turn] = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    stats = tier.stats()
    assert sizes.max() <= 1.02 * CAPACITY
    assert sizes[5 * room :].max() <= 1.01 * sizes[: 2 * room].max()  # flat once it is full
    assert stats.nbytes == pytest.approx(sizes[-1], rel=0.03)  # what it says is what it takes
    assert stats.fill_ratio > 0.9
    assert stats.nbytes > 0.85 * CAPACITY
    assert stats.inserted == stats.stored + stats.evicted


def test_more_ends_than_the_first_fragment_had_cost_places_in_proportion_only() -> None:
    quiet, busy = constant_stream(16, 8).fragments(16), always_truncated(512, 8).fragments(16)
    tier = shard()
    for fragment in endless([*quiet, *busy], 5 * CAPACITY // quiet[0].nbytes):
        tier.insert(fragment)
        assert tier.stats().nbytes <= 1.02 * CAPACITY
    assert tier.stats().fill_ratio > 0.05


def test_a_shard_too_small_for_a_fragment_holds_one() -> None:
    tier = shard(2**16)
    for fragment in constant_stream(128, 512).fragments(32):
        tier.insert(fragment)
    assert tier.stats().stored == 32 * 512
    assert tier.sample(4) is not None
