"""The inner loops of replay, compiled by numba where it is there, plain Python where it is not.

``HEADRACE_NUMBA=0`` runs them as plain Python: slow, but the oracle of the compiled ones; ``baked`` takes
them as compiled beforehand (:mod:`headrace.replay.baked`). They are compiled for writable, contiguous arrays;
for others they would be compiled once more, in the middle of a run.

Trees are binary heaps in float64 of any number of leaves L: node 1 is the root, node ``i`` has the children
``2 i`` and ``2 i + 1``, the leaves are nodes L to 2 L - 1. A parent is always the sum of its children,
computed anew and never by adding differences, so rounding can't build up however often leaves change.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Where the bootstrap observation of an item is found.
FROM_ROW, FROM_FINAL, FROM_EDGE = 0, 1, 2

# What became of a new priority, as counted by update_keys.
APPLIED, IGNORED, REFUSED = 0, 1, 2

PRIORITY_MAX = float(np.finfo(np.float32).max)
"""Priorities travel as float32; above its largest number is infinite."""


def _plain(function: _Function) -> _Function:
    return function


def _compiler() -> Callable[[_Function], _Function]:
    wanted = os.environ.get("HEADRACE_NUMBA", "1")
    if wanted == "0":
        return _plain
    try:
        import numba
    except ImportError:
        return _plain
    if wanted == "baked":
        from headrace.replay import baked

        return baked.compiler

    def compiler(function: _Function) -> _Function:
        try:
            found: Any = numba.njit(nogil=True, cache=True)(function)
        except RuntimeError:  # nowhere to keep what is compiled: a read-only installation
            found = numba.njit(nogil=True)(function)
        return cast("_Function", found)

    return compiler


compiled = _compiler()
COMPILED = compiled is not _plain
"""Whether the loops are machine code."""


@compiled
def _climb(tree: Float64s, node: int) -> None:
    """Recompute all that is above ``node``."""
    value = tree[node]
    while node > 1:
        value += tree[node ^ 1]
        node >>= 1
        tree[node] = value


@compiled
def _rebuild(tree: Float64s) -> None:
    """Recompute all parents."""
    for node in range(tree.shape[0] // 2 - 1, 0, -1):
        tree[node] = tree[2 * node] + tree[2 * node + 1]


@compiled
def _depth(leaves: int) -> int:
    """Steps from the root to the deepest leaf."""
    steps = 0
    while (1 << steps) < leaves:
        steps += 1
    return steps


@compiled
def _lift(items: Float64s, chunks: Float64s, factors: Float64s, slots: Int64s) -> None:
    """Recompute the tree over the chunks after the trees of ``slots`` have changed."""
    breadth = chunks.shape[0] // 2
    for i in range(len(slots)):
        chunks[breadth + slots[i]] = items[slots[i], 1] * factors[slots[i]]
    if len(slots) * _depth(breadth) > breadth:
        _rebuild(chunks)
    else:
        for i in range(len(slots)):
            _climb(chunks, breadth + slots[i])


@compiled
def set_leaves(
    items: Float64s, chunks: Float64s, factors: Float64s, slots: Int64s, leaves: Int64s, values: Float64s
) -> None:
    """Set leaf ``leaves[i]`` of tree ``slots[i]`` to ``values[i]``; the last of equal ones wins.

    ``items`` ``[C, 2 W]``: a tree a chunk; ``chunks`` ``[2 C]``: the tree over their roots, each times its
    factor ``[C]``.
    """
    width = items.shape[1] // 2
    for i in range(len(slots)):
        tree = items[slots[i]]
        tree[width + leaves[i]] = values[i]
        _climb(tree, width + leaves[i])
    _lift(items, chunks, factors, slots)


@compiled
def set_chunk(items: Float64s, chunks: Float64s, factors: Float64s, slot: int, values: Float64s) -> None:
    """Set all leaves of one chunk's tree, ``values`` ``[W]``."""
    tree, breadth = items[slot], chunks.shape[0] // 2
    for leaf in range(tree.shape[0] // 2):
        tree[tree.shape[0] // 2 + leaf] = values[leaf]
    _rebuild(tree)
    chunks[breadth + slot] = tree[1] * factors[slot]
    _climb(chunks, breadth + slot)


@compiled
def reweight(items: Float64s, chunks: Float64s, factors: Float64s) -> None:
    """Rebuild the tree over the chunks after the factors have changed."""
    breadth = chunks.shape[0] // 2
    for slot in range(breadth):
        chunks[breadth + slot] = items[slot, 1] * factors[slot]
    _rebuild(chunks)


@compiled
def update_keys(
    items: Float64s,
    chunks: Float64s,
    factors: Float64s,
    chunk_of: Int64s,
    drawable: Bools,
    keys: Int64s,
    priorities: Float64s,
    weights: Float64s,
    weighted: bool,
    counts: Int64s,
) -> float:
    """New priorities ``[N]`` of ``keys``, whose powers are ``weights``; returns the largest that was applied.

    ``chunk_of`` ``[C]`` is the chunk in each slot (-1: none), ``drawable`` ``[C, W]``. Writes ``counts``
    ``[3]``: applied, ignored (gone), refused (no priority). Unless ``weighted``, only the counts change.
    """
    num_slots, width = drawable.shape
    changed = np.empty(len(keys), np.int64)
    applied, refused, largest = 0, 0, 0.0
    for i in range(len(keys)):
        priority = priorities[i]
        if not 0.0 <= priority <= PRIORITY_MAX:  # nor is NaN
            refused += 1
            continue
        chunk = keys[i] // width
        slot, item = chunk % num_slots, keys[i] % width
        if keys[i] < 0 or chunk_of[slot] != chunk or not drawable[slot, item]:
            continue
        changed[applied] = slot
        applied += 1
        if weighted:
            largest = max(largest, priority)
            tree = items[slot]
            tree[width + item] = weights[i]
            _climb(tree, width + item)
    if weighted:
        _lift(items, chunks, factors, changed[:applied])
    counts[APPLIED] = applied
    counts[IGNORED] = len(keys) - applied - refused
    counts[REFUSED] = refused
    return largest


@compiled
def draw_leaves(
    items: Float64s,
    chunks: Float64s,
    factors: Float64s,
    uniforms: Float64s,
    slots: Int64s,
    leaves: Int64s,
    probabilities: Float64s,
) -> None:
    """Draw one leaf for each of ``uniforms`` ``[N]`` in [0, 1); writes the last three, ``[N]``.

    Needs a positive root. A child of weight 0 is never entered, whatever rounding says. All draws go down
    level by level together, without branches: none waits for the memory of another.
    """
    width, breadth = items.shape[1] // 2, chunks.shape[0] // 2
    root = chunks[1]
    rests, nodes = probabilities, slots
    for i in range(len(uniforms)):
        rests[i] = uniforms[i] * root
        nodes[i] = 1
    for _ in range(_depth(breadth)):
        for i in range(len(uniforms)):
            node = nodes[i]
            inner = node < breadth
            at = 2 * node * inner  # node 0 is 0: what is a leaf already stays there
            left = chunks[at]
            right = inner & (rests[i] >= left) & (chunks[at + 1] > 0.0)
            rests[i] -= left * right
            nodes[i] = at + right + node * (1 - inner)
    for i in range(len(uniforms)):
        slots[i] -= breadth
        rests[i] /= factors[slots[i]]
        leaves[i] = 1
    nodes = leaves
    for _ in range(_depth(width)):
        for i in range(len(uniforms)):
            node = nodes[i]
            inner = node < width
            at = 2 * node * inner
            left = items[slots[i], at]
            right = inner & (rests[i] >= left) & (items[slots[i], at + 1] > 0.0)
            rests[i] -= left * right
            nodes[i] = at + right + node * (1 - inner)
    for i in range(len(uniforms)):
        probabilities[i] = items[slots[i], leaves[i]] * factors[slots[i]] / root
        leaves[i] -= width


@compiled
def walk_n_steps(
    reward: npt.NDArray[np.float32],
    terminated: Bools,
    truncated: Bools,
    valid: Bools,
    successor: Int64s,
    slots: Int64s,
    items: Int64s,
    n_step: int,
    gamma: float,
    returns: npt.NDArray[np.float32],
    discounts: npt.NDArray[np.float32],
    heres: Int64s,
    kinds: npt.NDArray[np.int8],
    wheres: Int64s,
) -> bool:
    """Follow each item for up to ``n_step`` steps; writes the last five arrays, ``[N]``. False: no such item.

    Columns are ``[C * T, B]``, chunk after chunk; ``successor`` ``[C]`` is the slot of the chunk that follows
    in time, -1: none. A place is ``row * B + lane``. ``heres``: the places of the items. ``wheres``: the
    place to bootstrap from (FROM_ROW), the place of the end (FROM_FINAL), or ``slot * B + lane`` of the chunk
    at whose edge the item is cut (FROM_EDGE).
    """
    num_lanes = reward.shape[1]
    num_steps = reward.shape[0] // len(successor)
    for i in range(len(slots)):
        slot, step, lane = slots[i], items[i] // num_lanes, items[i] % num_lanes
        if not (0 <= slot < len(successor) and 0 <= step < num_steps):
            return False
        row = slot * num_steps + step
        heres[i] = row * num_lanes + lane
        total, weight, kind = 0.0, 1.0, FROM_ROW
        for _ in range(n_step):
            total += weight * reward[row, lane]
            weight *= gamma
            if terminated[row, lane]:
                weight = 0.0
                break
            if truncated[row, lane]:
                kind = FROM_FINAL
                break
            following, next_slot, next_step = row + 1, slot, step + 1
            if next_step == num_steps:
                next_slot, next_step = successor[slot], 0
                following = next_slot * num_steps if next_slot >= 0 else -1
            if following < 0 or not valid[following, lane]:
                kind = FROM_EDGE
                break
            row, slot, step = following, next_slot, next_step
        returns[i] = total
        discounts[i] = weight
        kinds[i] = kind
        wheres[i] = (slot if kind == FROM_EDGE else row) * num_lanes + lane
    return True


@cache
def warm_up() -> None:
    """Compile all loops for the arrays that replay has, so that this happens now and not under a lock."""
    items, chunks, factors, one = np.zeros((1, 2)), np.zeros(2), np.ones(1), np.ones(1)
    flags, first = np.ones((1, 1), np.bool_), np.zeros(1, np.int64)
    reward, number, kind = np.zeros((1, 1), np.float32), np.zeros(1, np.float32), np.zeros(1, np.int8)
    set_chunk(items, chunks, factors, 0, one)
    set_leaves(items, chunks, factors, first, first, one)
    reweight(items, chunks, factors)
    update_keys(items, chunks, factors, first, flags, first, one, one, True, np.zeros(3, np.int64))
    draw_leaves(
        items, chunks, factors, np.zeros(1), np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1)
    )
    walk_n_steps(
        reward, flags, flags, flags, first, first, first, 1, 0.5,
        number, number, np.zeros(1, np.int64), kind, np.zeros(1, np.int64),
    )  # fmt: skip
