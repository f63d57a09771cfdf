"""The hot tier: what goes in comes out, by the law, with the targets that belong to it, within its bytes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from streams import constant_stream, stream

from headrace.config.sections import ReplayConfig
from headrace.replay.shard import HotShard
from headrace.types import Fragment


def shard(*, n_step: int = 1, gamma: float = 0.9, seed: int = 0, **replay: Any) -> HotShard:
    return HotShard(ReplayConfig(**replay), n_step=n_step, gamma=gamma, rng=np.random.default_rng(seed))


def capacity_for(fragment: Fragment, chunks: int, **replay: Any) -> int:
    """Bytes for which a shard holds exactly ``chunks`` fragments like this one."""
    low, high = 2**16, 2**24
    while low < high:
        middle = (low + high) // 2
        probe = shard(hot_capacity_bytes=middle, **replay)
        probe.insert(fragment)
        held = round(1 / probe.stats().fill_ratio)
        low, high = (middle + 1, high) if held < chunks else (low, middle)
    return low


@pytest.mark.parametrize("length", [2, 5, 10, 30])
@pytest.mark.parametrize("n_step", [1, 2])
def test_targets_are_the_same_however_an_episode_is_cut_into_fragments(length: int, n_step: int) -> None:
    whole = stream(30, 3, seed=7)
    tier = shard(n_step=n_step)
    for fragment in whole.fragments(length):
        tier.insert(fragment)
    tier.flush()
    drawn = tier.sample(4000)
    assert drawn is not None
    seen = drawn.columns["observation"][:, 0]
    assert set(seen) == set(whole.observation.reshape(-1))  # every step, the last of each episode too
    for i in range(drawn.size):
        step, lane = divmod(int(seen[i]) - 1, 3)
        total, discount, bootstrap = whole.target(step, lane, n_step, 0.9)
        assert drawn.columns["n_step_return"][i] == pytest.approx(total, rel=1e-5, abs=1e-6)
        assert drawn.columns["discount"][i] == pytest.approx(discount, rel=1e-6)
        if discount:
            assert drawn.columns["next_observation"][i, 0] == bootstrap


def test_an_item_waits_for_the_fragment_that_its_target_needs() -> None:
    first, second = constant_stream(8, 1).fragments(4)
    tier = shard(n_step=3)
    tier.insert(first)
    assert tier.stats().count == 2  # steps 0 and 1 have their three steps (the edge's observation is known)
    tier.insert(second)
    assert tier.stats().count == 6
    tier.flush()
    assert tier.stats().count == 8


def test_the_oldest_leave_and_say_their_priorities() -> None:
    fragments = constant_stream(40, 64).fragments(8)
    capacity = capacity_for(fragments[0], 3, selector="prioritized", priority_exponent=1.0)
    tier = shard(hot_capacity_bytes=capacity, selector="prioritized", priority_exponent=1.0)
    priorities = np.full((8, 64), 0.5, np.float32)
    evicted = [gone for fragment in fragments for gone in tier.insert(fragment, priorities)]
    assert [gone.fragment_id.sequence for gone in evicted] == [0, 1]
    assert evicted[0].priorities == pytest.approx(priorities)
    stats = tier.stats()
    assert (stats.inserted, stats.stored, stats.evicted) == (5 * 512, 3 * 512, 2 * 512)
    assert stats.count == 3 * 512


def test_ten_times_the_capacity_stays_within_the_bytes() -> None:
    fragments = stream(4000, 4, seed=1).fragments(8)
    capacity = 2**16
    tier = shard(hot_capacity_bytes=capacity, selector="prioritized")
    for fragment in fragments * 2:
        tier.insert(fragment)
        assert tier.stats().nbytes <= capacity * 1.02
    stats = tier.stats()
    assert stats.evicted > 5 * stats.stored
    assert stats.inserted == stats.stored + stats.evicted


def test_a_stored_chunk_is_the_fragment_again() -> None:
    (fragment,) = stream(8, 3, seed=3).fragments(8)
    tier = shard(selector="prioritized", priority_exponent=0.5)
    priorities = np.random.default_rng(0).random((8, 3)).astype(np.float32)
    tier.insert(fragment, priorities)
    again = tier.fragment(0)
    assert (again.id, again.policy_version, again.num_transitions) == (
        fragment.id,
        fragment.policy_version,
        fragment.num_transitions,
    )
    for name in ("observation", "action", "reward", "terminated", "truncated", "bootstrap_observation"):
        assert np.array_equal(again.columns[name], fragment.columns[name])
    assert again.columns["priority"] == pytest.approx(priorities, rel=1e-5)


def test_bad_priorities_are_refused_and_change_nothing() -> None:
    (fragment,) = constant_stream(4, 2).fragments(4)
    tier = shard(selector="prioritized")
    for bad in (np.nan, np.inf, -1.0):
        with pytest.raises(ValueError, match="priorities"):
            tier.insert(fragment, np.full((4, 2), bad, np.float32))
    assert tier.stats().inserted == 0
    tier.insert(fragment)
    before = tier.stats().mass
    outcome = tier.update_priorities(np.array([0, 1, 999]), np.array([np.nan, -1.0, 1.0]))
    assert (outcome.applied, outcome.ignored, outcome.refused) == (0, 1, 2)
    assert tier.stats().mass == before


def test_an_empty_shard_has_nothing_to_draw() -> None:
    assert shard().sample(3) is None


def test_an_item_leaves_after_it_was_drawn_often_enough() -> None:
    (fragment,) = constant_stream(16, 4).fragments(16)
    tier = shard(max_times_sampled=3)
    tier.insert(fragment)
    drawn: Counter[int] = Counter()
    for _ in range(100):
        sample = tier.sample(32)
        if sample is None:
            break
        drawn.update(sample.keys.tolist())
    assert set(drawn.values()) == {3}
    assert len(drawn) == 64


@pytest.mark.parametrize(("selector", "expected"), [("fifo", [0, 1, 2, 3]), ("lifo", [31, 30, 29, 28])])
def test_fifo_and_lifo_go_in_order(selector: str, expected: list[int]) -> None:
    tier = shard(selector=selector, max_times_sampled=1)
    for fragment in constant_stream(16, 2).fragments(8):
        tier.insert(fragment)
    sample = tier.sample(4)
    assert sample is not None
    assert sample.keys.tolist() == expected


def test_older_versions_are_drawn_less_and_never_forgotten() -> None:
    tier = shard(freshness_half_life=2.0, freshness_floor=0.125)
    for fragment in constant_stream(32, 2).fragments(8):  # versions 1 to 4
        tier.insert(fragment)
    tier.set_version(8)
    sample = tier.sample(1)
    assert sample is not None
    weights = np.array([max(0.125, 0.5 ** ((8 - version) / 2)) for version in (1, 2, 3, 4)])
    assert tier.stats().mass == pytest.approx(16 * weights.sum())
    assert sample.probabilities[0] == pytest.approx(
        weights[int(sample.versions[0]) - 1] / (16 * weights.sum())
    )
