"""The inner loops of replay, compiled by numba where it is there, plain Python where it is not.

``HEADRACE_NUMBA=0`` runs them as plain Python: slow, but the oracle of the compiled ones.

Trees are binary heaps in float64: node 1 is the root, node ``i`` has the children ``2 i`` and ``2 i + 1``,
the leaves begin at half the length. A parent is always recomputed as the sum of its children, so rounding
can't build up however often leaves change.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Where the bootstrap observation of an item is found.
FROM_ROW, FROM_FINAL, FROM_EDGE = 0, 1, 2


def _plain(function: _Function) -> _Function:
    return function


def _compiler() -> Callable[[_Function], _Function]:
    if os.environ.get("HEADRACE_NUMBA", "1") == "0":
        return _plain
    try:
        import numba
    except ImportError:
        return _plain
    compiler: Any = numba.njit(nogil=True, cache=True)
    return cast("Callable[[_Function], _Function]", compiler)


compiled = _compiler()


@compiled
def set_leaves(
    items: Float64s, chunks: Float64s, factors: Float64s, slots: Int64s, leaves: Int64s, values: Float64s
) -> None:
    """Set leaf ``leaves[i]`` of tree ``slots[i]`` to ``values[i]``; the last of equal ones wins.

    ``items`` ``[C, 2 W]``: a tree a chunk; ``chunks`` ``[2 V]``: the tree over their roots, each times its
    factor ``[C]``.
    """
    width, breadth = items.shape[1] // 2, chunks.shape[0] // 2
    for i in range(len(slots)):
        slot = slots[i]
        node = width + leaves[i]
        items[slot, node] = values[i]
        node >>= 1
        while node >= 1:
            items[slot, node] = items[slot, 2 * node] + items[slot, 2 * node + 1]
            node >>= 1
        node = breadth + slot
        chunks[node] = items[slot, 1] * factors[slot]
        node >>= 1
        while node >= 1:
            chunks[node] = chunks[2 * node] + chunks[2 * node + 1]
            node >>= 1


@compiled
def set_chunk(items: Float64s, chunks: Float64s, factors: Float64s, slot: int, values: Float64s) -> None:
    """Set all leaves of one chunk's tree, ``values`` ``[<= W]``; leaves beyond them become 0."""
    width, breadth = items.shape[1] // 2, chunks.shape[0] // 2
    for leaf in range(width):
        items[slot, width + leaf] = values[leaf] if leaf < len(values) else 0.0
    for node in range(width - 1, 0, -1):
        items[slot, node] = items[slot, 2 * node] + items[slot, 2 * node + 1]
    node = breadth + slot
    chunks[node] = items[slot, 1] * factors[slot]
    node >>= 1
    while node >= 1:
        chunks[node] = chunks[2 * node] + chunks[2 * node + 1]
        node >>= 1


@compiled
def reweight(items: Float64s, chunks: Float64s, factors: Float64s) -> None:
    """Rebuild the tree over the chunks after the factors have changed."""
    breadth = chunks.shape[0] // 2
    for slot in range(items.shape[0]):
        chunks[breadth + slot] = items[slot, 1] * factors[slot]
    for node in range(breadth - 1, 0, -1):
        chunks[node] = chunks[2 * node] + chunks[2 * node + 1]


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

    Needs a positive root. A child of weight 0 is never entered, whatever rounding says.
    """
    width, breadth = items.shape[1] // 2, chunks.shape[0] // 2
    root = chunks[1]
    for i in range(len(uniforms)):
        rest = uniforms[i] * root
        node = 1
        while node < breadth:
            left = chunks[2 * node]
            if rest < left or chunks[2 * node + 1] <= 0.0:
                node = 2 * node
            else:
                rest -= left
                node = 2 * node + 1
        slot = node - breadth
        rest /= factors[slot]
        node = 1
        while node < width:
            left = items[slot, 2 * node]
            if (rest < left and left > 0.0) or items[slot, 2 * node + 1] <= 0.0:
                node = 2 * node
            else:
                rest -= left
                node = 2 * node + 1
        slots[i] = slot
        leaves[i] = node - width
        probabilities[i] = items[slot, node] * factors[slot] / root


@compiled
def walk_n_steps(
    reward: npt.NDArray[np.float32],
    terminated: npt.NDArray[np.bool_],
    truncated: npt.NDArray[np.bool_],
    valid: npt.NDArray[np.bool_],
    successor: Int64s,
    num_steps: int,
    rows: Int64s,
    lanes: Int64s,
    n_step: int,
    gamma: float,
    returns: npt.NDArray[np.float32],
    discounts: npt.NDArray[np.float32],
    kinds: npt.NDArray[np.int8],
    wheres: Int64s,
) -> None:
    """Follow each item for up to ``n_step`` steps; writes the last four arrays, ``[N]``.

    Columns are ``[C * T, B]``, chunk after chunk, T = ``num_steps``; ``successor`` ``[C]`` is the slot of the
    chunk that follows in time, -1: none. ``wheres``: the row to bootstrap from (FROM_ROW), the row of the
    end (FROM_FINAL), or the slot at whose edge the item is cut (FROM_EDGE).
    """
    for i in range(len(rows)):
        row, lane = rows[i], lanes[i]
        total, weight = 0.0, 1.0
        kind, where = FROM_ROW, row
        for _ in range(n_step):
            total += weight * reward[row, lane]
            weight *= gamma
            where = row
            if terminated[row, lane]:
                weight = 0.0
                kind = FROM_ROW
                break
            if truncated[row, lane]:
                kind = FROM_FINAL
                break
            slot = row // num_steps
            following = row + 1
            if following % num_steps == 0:
                following = successor[slot] * num_steps if successor[slot] >= 0 else -1
            if following < 0 or not valid[following, lane]:
                kind = FROM_EDGE
                where = slot
                break
            row = following
            where = row
        returns[i] = total
        discounts[i] = weight
        kinds[i] = kind
        wheres[i] = where
