"""The hot tier: what goes in comes out, by the law, with the targets that belong to it, within its bytes."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from streams import constant_stream, eventful_stream, stream

from headrace.config.sections import ReplayConfig
from headrace.replay.shard import HotShard, bytes_per_chunk
from headrace.types import PRIORITY, Fragment


def shard(*, n_step: int = 1, gamma: float = 0.9, seed: int = 0, **replay: Any) -> HotShard:
    return HotShard(ReplayConfig(**replay), n_step=n_step, gamma=gamma, rng=np.random.default_rng(seed))


def capacity_for(fragment: Fragment, chunks: int, **replay: Any) -> int:
    """Bytes for which a shard holds exactly ``chunks`` fragments like this one."""
    return chunks * bytes_per_chunk(ReplayConfig(**replay), fragment)


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
    needed = fragment.columns["truncated"] & ~fragment.columns["terminated"]
    kept = needed.reshape(-1)[fragment.columns["final_index"]]  # nothing bootstraps from the others
    expected = {
        **fragment.columns,
        "valid": np.ones((8, 3), np.bool_),
        "final_index": fragment.columns["final_index"][kept],
        "final_observation": fragment.columns["final_observation"][kept],
    }
    assert set(again.columns) == {*expected, PRIORITY}
    for name, column in expected.items():
        assert again.columns[name].dtype == column.dtype
        assert np.array_equal(again.columns[name], column)
    assert again.columns[PRIORITY] == pytest.approx(priorities, rel=1e-5)


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


@pytest.mark.parametrize(
    ("remover", "left"), [("fifo", [3, 4, 5]), ("lifo", [0, 1, 5]), ("prioritized", [0, 2, 5])]
)
def test_a_full_shard_lets_go_of_the_chunk_that_its_remover_names(remover: str, left: list[int]) -> None:
    fragments = constant_stream(48, 64).fragments(8)
    settings = {"selector": "prioritized", "priority_exponent": 1.0, "remover": remover}
    tier = shard(hot_capacity_bytes=capacity_for(fragments[0], 3, **settings), **settings)
    for fragment, priority in zip(fragments, [3, 1, 4, 1.5, 2, 1.2], strict=True):
        tier.insert(fragment, np.full((8, 64), priority, np.float32))
    drawn = tier.sample(2000)
    assert drawn is not None
    assert sorted(set(((drawn.columns["observation"][:, 0] - 1) // 512).astype(int))) == left
    assert tier.stats().stored == tier.stats().count == 3 * 512


def test_a_uniform_remover_lets_go_of_any_chunk() -> None:
    fragments = constant_stream(8 * 6, 64).fragments(8)
    capacity, gone = capacity_for(fragments[0], 5), set()
    for seed in range(60):
        tier = shard(hot_capacity_bytes=capacity, remover="uniform", seed=seed)
        gone |= {evicted.fragment_id.sequence for fragment in fragments for evicted in tier.insert(fragment)}
    assert gone == {0, 1, 2, 3, 4}


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


def test_a_version_that_comes_with_experience_makes_the_rest_older() -> None:
    tier = shard(freshness_half_life=1.0, freshness_floor=0.0)
    old, new = constant_stream(4, 1).fragments(2)  # versions 1 and 2
    tier.insert(old)
    tier.insert(new)
    assert tier.stats().mass == pytest.approx(2 * 0.5 + 2 * 1.0)
    assert (tier.stats().version_min, tier.stats().newest_version) == (1, 2)


def test_the_last_steps_wait_with_the_priorities_they_came_with() -> None:
    first, second = constant_stream(8, 1).fragments(4)
    tier = shard(n_step=3, selector="prioritized", priority_exponent=1.0)
    tier.insert(first, np.array([[1.0], [2.0], [4.0], [8.0]], np.float32))
    assert tier.stats().mass == pytest.approx(3.0)
    assert tier.fragment(0).columns[PRIORITY][:, 0].tolist() == [1.0, 2.0, 4.0, 8.0]
    tier.insert(second, np.zeros((4, 1), np.float32))
    assert tier.stats().mass == pytest.approx(15.0)


def test_a_chunk_leaves_with_the_priorities_it_waits_with() -> None:
    fragments = constant_stream(8, 64).fragments(4)
    replay: dict[str, Any] = {"selector": "prioritized", "priority_exponent": 1.0}
    tier = shard(n_step=3, hot_capacity_bytes=max(2**16, capacity_for(fragments[0], 1)), **replay)
    big = shard(n_step=3, **replay)
    priorities = np.random.default_rng(0).random((4, 64)).astype(np.float32)
    for fragment in fragments:
        big.insert(fragment, priorities)
    assert big.fragment(1).columns[PRIORITY] == pytest.approx(priorities)
    gone = []
    while not gone:
        gone = tier.insert(fragments[0], priorities)
    assert gone[0].priorities == pytest.approx(priorities)


def test_bad_numbers_of_steps_that_are_no_transitions_hurt_nobody() -> None:
    (fragment,) = eventful_stream(12, 2, seed=4, length=12).fragments(12)
    valid = fragment.columns["valid"]
    assert not valid.all()
    tier = shard(selector="prioritized", priority_exponent=1.0)
    tier.insert(fragment, np.where(valid, 0.5, np.nan).astype(np.float32))
    tier.flush()
    assert tier.stats().count == fragment.num_transitions
    assert tier.stats().mass == pytest.approx(0.5 * fragment.num_transitions)


def changed(fragment: Fragment, **columns: Any) -> Fragment:
    return replace(fragment, columns={**fragment.columns, **columns})


def test_what_does_not_fit_is_refused_and_nothing_leaves_for_it() -> None:
    first, second = stream(80, 64, seed=2).fragments(40)
    tier = shard(hot_capacity_bytes=max(2**16, capacity_for(first, 1)), selector="prioritized")
    tier.insert(first)
    before = tier.stats()
    observation = second.columns["observation"]
    no_finals = {"final_index": np.zeros(0, np.int32), "final_observation": np.zeros((0, 1), np.float32)}
    for bad, reason in (
        (changed(second, observation=observation[:, :, [0, 0]]), "observation"),
        (changed(second, observation=observation.astype(np.float64)), "float64"),
        (changed(second, **{"observation/more": observation}), "observation/more"),
        (changed(second, **no_finals), "final observation"),
        (constant_stream(20, 64).fragments(20)[0], r"\(20, 64, 1\)"),
    ):
        with pytest.raises(ValueError, match=reason):
            tier.insert(bad)
    for priorities in (np.full((40, 64), np.nan, np.float32), np.ones((64, 40), np.float32)):
        with pytest.raises(ValueError, match="priorities"):
            tier.insert(second, priorities)
    assert tier.stats() == before
    assert len(tier.insert(second)) == 1


def test_more_steps_than_a_fragment_has_are_refused() -> None:
    (fragment,) = constant_stream(4, 1).fragments(4)
    with pytest.raises(ValueError, match="5 steps reach past"):
        shard(n_step=5).insert(fragment)


def test_learners_draw_while_the_sampler_writes() -> None:
    """Each drawn row belongs together: a torn one would mix two fragments of the same slot."""
    fragments = constant_stream(4000, 16).fragments(8)
    for fragment in fragments:
        observation = fragment.columns["observation"]
        observation[:] = float(fragment.id.sequence)
        fragment.columns["reward"][:] = float(fragment.id.sequence)
        fragment.columns["bootstrap_observation"][:] = float(fragment.id.sequence)
    tier = shard(hot_capacity_bytes=max(2**16, capacity_for(fragments[0], 3)), selector="prioritized")
    tier.insert(fragments[0])
    torn: list[int] = []
    draws: list[int] = []
    over = threading.Event()

    def learn() -> None:
        while not over.is_set() or not draws:
            sample = tier.sample(32)
            assert sample is not None
            same = sample.columns["observation"][:, 0] == sample.columns["n_step_return"]
            same &= sample.columns["n_step_return"] == sample.keys // (8 * 16)
            torn.extend(sample.keys[~same].tolist())
            draws.append(sample.size)
            tier.update_priorities(sample.keys, np.ones(sample.size))

    threads = [threading.Thread(target=learn) for _ in range(2)]
    for thread in threads:
        thread.start()
    for fragment in fragments[1:]:
        tier.insert(fragment)
    over.set()
    for thread in threads:
        thread.join()
    stats = tier.stats()
    assert not torn
    assert stats.drawn == sum(draws)
    assert stats.inserted == stats.stored + stats.evicted == len(fragments) * 8 * 16


def test_composite_observations_and_actions_are_drawn_leaf_by_leaf() -> None:
    plain = stream(24, 2, seed=9)
    tier = shard()
    for fragment in plain.fragments(8):
        columns = dict(fragment.columns)
        for name in ("observation", "bootstrap_observation", "final_observation"):
            column = columns.pop(name)
            columns[f"{name}/number"] = column
            columns[f"{name}/image"] = np.repeat(np.abs(column), 6, axis=-1).astype(np.uint8)
        columns["action/a"] = columns.pop("action")
        tier.insert(replace(fragment, columns=columns))
    tier.flush()
    drawn = tier.sample(500)
    assert drawn is not None
    for name in ("observation", "next_observation"):
        number, image = drawn.columns[f"{name}/number"], drawn.columns[f"{name}/image"]
        assert image.dtype == np.uint8
        assert np.array_equal(np.repeat(np.abs(number), 6, axis=-1), image)
    steps, lanes = np.divmod(drawn.columns["observation/number"][:, 0].astype(int) - 1, 2)
    assert drawn.columns["action/a"].tolist() == (steps % 8 * 2 + lanes).tolist()
