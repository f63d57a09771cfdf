"""The law of sampling: every item as often as its priority says, whatever the capacity."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from headrace.replay import kernels
from headrace.replay.items import ItemIndex
from headrace.replay.weights import drift, importance_weights, law, quotas


def index(max_chunks: int, items: int, *, exponent: float = 1.0, seed: int = 0) -> ItemIndex:
    return ItemIndex(
        max_chunks=max_chunks,
        items_per_chunk=items,
        rng=np.random.default_rng(seed),
        selector="prioritized",
        priority_exponent=exponent,
    )


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Divided by its degrees of freedom: near 1 if the law holds."""
    likely = probabilities > 0
    expected = counts.sum() * probabilities[likely]
    return float(((counts[likely] - expected) ** 2 / expected).sum() / max(1, likely.sum() - 1))


@pytest.mark.parametrize(("chunks", "items"), [(1, 1), (1, 3), (5, 1), (3, 5), (10, 100)])
def test_a_full_index_draws_every_item_by_its_priority(chunks: int, items: int) -> None:
    store, rng = index(chunks, items, exponent=0.6), np.random.default_rng(1)
    weights = []
    for chunk in range(3 * chunks):  # filled three times over: what is drawn is the newest third
        store.remove(chunk - chunks)
        priorities = rng.random(items).astype(np.float32)
        priorities[rng.random(items) < 0.1] = 0.0
        store.add(chunk, np.ones(items, np.bool_), priorities, version=0)
        weights.append(np.where(priorities > 0, priorities.astype(np.float64) ** 0.6, 0.0))
    true = np.concatenate(weights[-chunks:])
    if true.sum() == 0:
        return
    true /= true.sum()
    drawn = store.draw(200_000)
    counts = np.bincount(drawn.keys - 2 * chunks * items, minlength=chunks * items)
    assert not counts[true == 0].any()
    assert drawn.probabilities == pytest.approx(true[drawn.keys - 2 * chunks * items])
    if np.count_nonzero(true) > 1:
        assert chi_square(counts, true) < 1 + 5 * np.sqrt(2 / (np.count_nonzero(true) - 1))


def test_three_shards_together_are_one_tree() -> None:
    rng = np.random.default_rng(5)
    priorities = [rng.random(50 * size).astype(np.float32) for size in (1, 2, 7)]
    shards = []
    for values in priorities:
        shard = index(len(values), 1, exponent=0.7)
        for chunk, value in enumerate(values):
            shard.add(chunk, np.ones(1, np.bool_), np.array([value]), version=0)
        shards.append(shard)
    whole = np.concatenate(priorities).astype(np.float64) ** 0.7
    true = whole / whole.sum()
    shares = law([shard.mass for shard in shards])
    counts, probabilities = np.zeros(len(true)), np.zeros(len(true))
    offset = 0
    for shard, share, number in zip(shards, shares, quotas(shares, 1_000_000, rng), strict=True):
        drawn = shard.draw(int(number))
        np.add.at(counts, drawn.keys + offset, 1)
        probabilities[drawn.keys + offset] = share * drawn.probabilities
        offset += shard.count
    seen = counts > 0
    assert probabilities[seen] == pytest.approx(true[seen])
    assert chi_square(counts, true) < 1 + 5 * np.sqrt(2 / (len(true) - 1))
    weights = importance_weights(true, len(true), 0.4)
    expected = (len(true) * true) ** -0.4
    assert weights == pytest.approx(expected / expected.max(), rel=1e-6)


def test_the_root_is_the_sum_of_the_leaves_after_ten_million_updates() -> None:
    store, rng = index(64, 256), np.random.default_rng(2)
    for chunk in range(64):
        store.add(chunk, np.ones(256, np.bool_), None, version=0)
    true = np.ones(64 * 256)
    for _ in range(100 if kernels.COMPILED else 1):
        keys = rng.integers(0, len(true), 100_000)
        values = 10.0 ** rng.uniform(-6, 6, len(keys))
        store.update(keys, values)
        true[keys] = values
    assert store.mass == pytest.approx(float(np.sum(np.sort(true))), rel=1e-9)


def test_an_empty_slot_is_never_drawn() -> None:
    store = index(8, 4)
    store.add(5, np.array([True, False, True, False]), None, version=0)
    assert set(store.draw(1000).keys.tolist()) == {20, 22}


def test_late_priorities_of_what_is_gone_are_ignored() -> None:
    store = index(2, 2)
    store.add(0, np.ones(2, np.bool_), None, version=0)
    store.remove(0)
    store.add(2, np.ones(2, np.bool_), None, version=0)  # in the same slot
    outcome = store.update(np.array([0, 1, 4]), np.array([9.0, 9.0, 9.0]))
    assert (outcome.applied, outcome.ignored) == (1, 2)
    assert store.mass == pytest.approx(10.0)


def test_drift_is_the_total_variation_of_the_laws() -> None:
    assert drift([1, 1], [2, 2]) == 0.0
    assert drift([1, 0], [0, 1]) == 1.0
    assert drift([1, 1], [3, 1]) == pytest.approx(0.25)
    assert law([0, 0]).tolist() == [0, 0]


def test_a_shard_whose_mass_is_no_number_gets_nothing() -> None:
    assert law([np.nan, 1.0, -1.0, np.inf, 3.0]).tolist() == [0, 0.25, 0, 0, 0.75]
    assert quotas(law([np.nan, 0.0]), 5, np.random.default_rng(0)).tolist() == [0, 0]


def test_importance_weights_are_those_of_the_whole() -> None:
    probabilities = np.array([0.5, 0.1, 0.01])
    expected = (50 * probabilities) ** -0.6
    assert importance_weights(probabilities, 50, 0.6) == pytest.approx(expected / expected.max(), rel=1e-6)
    assert importance_weights(probabilities, 50, 0.0).tolist() == [1, 1, 1]


def test_an_old_chunk_is_never_ruled_out_without_a_floor() -> None:
    store = ItemIndex(max_chunks=2, items_per_chunk=1, rng=np.random.default_rng(0), freshness_half_life=1.0)
    store.add(0, np.ones(1, np.bool_), None, version=0)
    store.set_version(10**6)
    assert store.draw(3).keys.tolist() == [0, 0, 0]


@pytest.mark.parametrize("selector", ["uniform", "fifo"])
def test_an_item_drawn_often_enough_is_gone_for_its_priorities_too(
    selector: Literal["uniform", "fifo"],
) -> None:
    store = ItemIndex(
        max_chunks=1,
        items_per_chunk=4,
        rng=np.random.default_rng(0),
        selector=selector,
        max_times_sampled=2,
    )
    store.add(0, np.ones(4, np.bool_), None, version=0)
    drawn = [store.draw(4) for _ in range(20)]
    assert sorted(np.concatenate([one.keys for one in drawn]).tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (store.count, store.mass) == (0, 0.0)
    assert store.update(np.array([1]), np.array([1.0])).ignored == 1


def test_items_outside_of_a_chunk_are_refused() -> None:
    store = index(2, 4)
    store.add(0, np.zeros(4, np.bool_), None, version=0)
    for items in ([-1], [4]):
        with pytest.raises(IndexError):
            store.activate(0, np.array(items), None)
    assert store.mass == 0.0
