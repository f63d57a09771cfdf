"""The index against a naive one that keeps a dictionary, and the compiled loops against plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_kernels import load_plain_kernels

from headrace.replay import kernels
from headrace.replay.items import ItemIndex

PLAIN = load_plain_kernels()
SLOTS, ITEMS = 3, 5

priority = st.one_of(
    st.just(0.0), st.floats(2.0**-100, 2.0**100, width=32), st.sampled_from([np.nan, np.inf, -np.inf, -1.0])
)


@dataclass
class Naive:
    """Items and their priorities in a dictionary; versions by chunk."""

    exponent: float
    half_life: float | None
    priorities: dict[int, float] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    newest: int = 0
    largest: float = 1.0

    def weight(self, key: int) -> float:
        value = self.priorities[key]
        lag = self.newest - self.versions[key // ITEMS]
        fresh = 1.0 if self.half_life is None else max(0.25, 0.5 ** (lag / self.half_life))
        return (value**self.exponent if value > 0 else 0.0) * fresh

    def put(self, key: int, value: float | None) -> None:
        self.priorities[key] = self.largest if value is None else value

    @property
    def mass(self) -> float:
        return sum(map(self.weight, self.priorities))


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([None, 2.0]))
def test_the_index_is_a_dictionary_of_priorities(
    data: st.DataObject, exponent: float, half_life: float | None
) -> None:
    index = ItemIndex(
        max_chunks=SLOTS,
        items_per_chunk=ITEMS,
        rng=np.random.default_rng(data.draw(st.integers(0, 1000))),
        selector="prioritized",
        priority_exponent=exponent,
        freshness_half_life=half_life,
        freshness_floor=0.25,
    )
    naive, chunk = Naive(exponent, half_life), 0
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["add", "remove", "activate", "update", "version"]))
        if action == "add":
            chunk = add(index, naive, chunk, data)
        elif action == "remove" and naive.versions:
            gone = data.draw(st.sampled_from(sorted(naive.versions)))
            keys = [key for key in naive.priorities if key // ITEMS == gone]
            assert index.remove(gone) == len(keys)
            for key in keys:
                del naive.priorities[key]
            del naive.versions[gone]
        elif action == "activate" and naive.versions:
            activate(index, naive, data)
        elif action == "update":
            update(index, naive, chunk, data)
        elif action == "version":
            naive.newest += data.draw(st.integers(0, 3))
            index.set_version(naive.newest)
        check_same(index, naive)


def add(index: ItemIndex, naive: Naive, chunk: int, data: st.DataObject) -> int:
    if chunk - SLOTS in naive.versions:
        with pytest.raises(ValueError, match="in use"):
            index.add(chunk, np.ones(ITEMS, np.bool_), None, 0)
        return chunk
    drawable = np.array(data.draw(st.lists(st.booleans(), min_size=ITEMS, max_size=ITEMS)))
    values = data.draw(st.none() | st.lists(priority, min_size=ITEMS, max_size=ITEMS))
    given_ = None if values is None else np.array(values, np.float32)
    version = data.draw(st.integers(0, naive.newest + 2))
    if given_ is not None and not good(given_[drawable]).all():
        with pytest.raises(ValueError, match="priorities"):
            index.add(chunk, drawable, given_, version)
        return chunk
    index.add(chunk, drawable, given_, version)
    naive.versions[chunk] = version
    naive.newest = max(naive.newest, version)
    if given_ is not None:
        naive.largest = max(naive.largest, float(given_[drawable].max(initial=0.0)))
    for item in np.flatnonzero(drawable):
        naive.put(chunk * ITEMS + int(item), None if given_ is None else float(given_[item]))
    return chunk + 1


def activate(index: ItemIndex, naive: Naive, data: st.DataObject) -> None:
    chunk = data.draw(st.sampled_from(sorted(naive.versions)))
    items = np.array(sorted(data.draw(st.sets(st.integers(0, ITEMS - 1)))), np.int64)
    index.activate(chunk, items, None)
    for item in items.tolist():
        naive.put(chunk * ITEMS + item, None)


def update(index: ItemIndex, naive: Naive, chunk: int, data: st.DataObject) -> None:
    keys = np.array(data.draw(st.lists(st.integers(-3, (chunk + 1) * ITEMS), max_size=12)), np.int64)
    values = np.array(data.draw(st.lists(priority, min_size=len(keys), max_size=len(keys))), np.float32)
    outcome = index.update(keys, values)
    fine = good(values)
    there = np.array([int(key) in naive.priorities for key in keys], np.bool_)
    assert outcome.refused == np.count_nonzero(~fine)
    assert outcome.ignored == np.count_nonzero(fine & ~there)
    assert outcome.applied == np.count_nonzero(fine & there)
    for key, value in zip(keys[fine & there].tolist(), values[fine & there].tolist(), strict=True):
        naive.put(key, value)
        naive.largest = max(naive.largest, value)


def good(values: Any) -> Any:
    return np.isfinite(values) & (values >= 0)


def check_same(index: ItemIndex, naive: Naive) -> None:
    assert index.count == len(naive.priorities)
    assert index.mass == pytest.approx(naive.mass, rel=1e-12)
    assert index.max_priority == naive.largest
    for chunk in naive.versions:
        expected = [naive.priorities.get(chunk * ITEMS + item, 0.0) for item in range(ITEMS)]
        if naive.exponent == 0.0:
            expected = [float(value > 0) for value in expected]
        assert index.priorities_of(chunk) == pytest.approx(expected, rel=1e-5)
    drawn = index.draw(50)
    assert len(drawn.keys) == (50 if naive.mass > 0 else 0)
    for key, probability in zip(drawn.keys.tolist(), drawn.probabilities.tolist(), strict=True):
        assert naive.weight(key) > 0
        assert probability == pytest.approx(naive.weight(key) / naive.mass, rel=1e-12)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_compiled_and_plain_loops_do_the_same_bit_by_bit(slots: int, items: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    both = [fill(module, slots, items, np.random.default_rng(seed)) for module in (kernels, PLAIN)]
    for mine, other in zip(*both, strict=True):
        assert np.array_equal(mine, other)
    uniforms = rng.random(20)
    drawn = []
    for module, (trees, chunks, factors) in zip((kernels, PLAIN), both, strict=True):
        out = np.empty(20, np.int64), np.empty(20, np.int64), np.empty(20)
        if chunks[1] > 0:
            module.draw_leaves(trees, chunks, factors, uniforms, *out)
            drawn.append(out)
    for mine, other in zip(*drawn, strict=True) if drawn else ():
        assert np.array_equal(mine, other)


def fill(module: Any, slots: int, items: int, rng: np.random.Generator) -> Any:
    """Trees after some of everything that changes them."""
    trees, chunks, factors = np.zeros((slots, 2 * items)), np.zeros(2 * slots), rng.random(slots) + 0.1
    module.set_chunk(trees, chunks, factors, int(rng.integers(slots)), rng.random(items))
    where = rng.integers(slots, size=7), rng.integers(items, size=7)
    module.set_leaves(trees, chunks, factors, *where, rng.random(7))
    drawable = rng.random((slots, items)) < 0.8
    keys, priorities = rng.integers(-2, slots * items, size=9), rng.uniform(-0.2, 1.0, 9)
    counts = np.empty(3, np.int64)
    module.update_keys(
        trees, chunks, factors, np.arange(slots), drawable, keys, priorities, priorities**2, True, counts
    )
    factors[:] = rng.random(slots) + 0.1
    module.reweight(trees, chunks, factors)
    return trees, chunks, factors


@settings(deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([1e-300, 1e-20, 1.0, 1e20]),
    st.integers(0, 2**32 - 1),
)
def test_no_draw_lands_on_weight_zero_not_even_at_the_edges(
    slots: int, items: int, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.random((slots, items)) * scale ** rng.integers(0, 2, (slots, items))
    weights[rng.random((slots, items)) < 0.5] = 0.0
    trees, chunks = np.zeros((slots, 2 * items)), np.zeros(2 * slots)
    factors = rng.choice([1e-12, 0.3, 1.0], slots)
    for slot in range(slots):
        kernels.set_chunk(trees, chunks, factors, slot, weights[slot])
    if chunks[1] <= 0:
        return
    uniforms = np.concatenate([[0.0, np.nextafter(1.0, 0.0)], rng.random(50)])
    drawn = np.empty(52, np.int64), np.empty(52, np.int64), np.empty(52)
    kernels.draw_leaves(trees, chunks, factors, uniforms, *drawn)
    assert (weights[drawn[0], drawn[1]] > 0).all()
