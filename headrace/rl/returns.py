"""Returns and advantages over time-major fragments, with the right bootstrap for every kind of end.

==========================================  =====================================================
the step's end                              what follows it is worth
==========================================  =====================================================
terminated (also if truncated too)          nothing
truncated, by environment or step cap       ``final_value``: V of the true last observation
cut by the fragment's edge                  ``bootstrap_value``: V of the observation after it
none                                        the next row
==========================================  =====================================================

Steps with ``valid`` False are no transitions: they get 0, and no trace passes through them. An invalid
run begins where an episode or the fragment begins, so no valid step ever bootstraps from one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.types import (
    BOOTSTRAP_VALUE,
    FINAL_INDEX,
    FINAL_VALUE,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    VALUE,
    Array,
    Batch,
    Columns,
    FragmentId,
)

FloatArray = npt.NDArray[np.float64]


def next_values(columns: Columns) -> FloatArray:
    """V of what follows each step, ``[T, B]``, by the table above; 0 where nothing follows.

    ValueError if a truncated step has no entry in ``final_index``.
    """
    value, terminated = columns[VALUE], columns[TERMINATED]
    following = np.empty(value.shape, np.float64)
    following[:-1] = value[1:]
    following[-1] = columns[BOOTSTRAP_VALUE]
    missing = columns[TRUNCATED] & ~terminated & valid_mask(columns)
    index = columns[FINAL_INDEX]
    following.reshape(-1)[index] = columns[FINAL_VALUE]
    missing.reshape(-1)[index] = False
    if missing.any():
        step, lane = np.argwhere(missing)[0]
        raise ValueError(f"step {step} of lane {lane} is truncated but has no final_value")
    following[terminated] = 0.0
    return following


def generalized_advantages(
    columns: Columns, *, gamma: float, gae_lambda: float, next_advantage: Array | None = None
) -> FloatArray:
    """Generalized advantage estimates ``[T, B]`` in units of reward.

    ``A_t = delta_t + gamma * lambda * A_{t+1}`` with ``delta_t = r_t + gamma * V_{t+1} - V_t``, the trace
    cut after the last step of an episode: Schulman et al., "High-Dimensional Continuous Control Using
    Generalized Advantage Estimation" (2016), equations 11 to 16. ``next_advantage`` ``[B]`` is the
    advantage of the step after the last row, if the fragment that follows is at hand (0 otherwise).
    """
    deltas, traces = deltas_and_traces(columns, gamma, gae_lambda)
    return _reverse_scan(deltas, traces, next_advantage)


def batch_advantages(batch: Batch, *, gamma: float, gae_lambda: float) -> FloatArray:
    """:func:`generalized_advantages` of a batch ``[T, sum of B]``, however its episodes were cut.

    Where the fragment that follows is in the batch too (same sampler incarnation, next sequence), the
    trace runs on into it: an episode has the same advantages in one fragment or in five. Fragments that
    follow each other have the same number of lanes.
    """
    deltas, traces = deltas_and_traces(batch.columns, gamma, gae_lambda)
    return scan_batch(deltas, traces, batch.fragment_ids)


def deltas_and_traces(columns: Columns, gamma: float, gae_lambda: float) -> tuple[FloatArray, FloatArray]:
    """The one-step errors delta ``[T, B]``, and how much of the next advantage each step takes."""
    valid = valid_mask(columns)
    deltas = columns[REWARD].astype(np.float64)
    deltas += gamma * next_values(columns) - columns[VALUE]
    deltas[~valid] = 0.0
    traces = gamma * gae_lambda * (valid & ~columns[TERMINATED] & ~columns[TRUNCATED]).astype(np.float64)
    return deltas, traces


def scan_batch(addend: FloatArray, factor: FloatArray, ids: Sequence[FragmentId]) -> FloatArray:
    """``x_t = addend_t + factor_t * x_{t+1}`` over a batch ``[T, sum of B]``, backwards in time.

    What follows a fragment's last row is the first row of the fragment that follows it, if that is in the
    batch too, else 0. ``ids`` names the fragments from left to right.
    """
    rounds = _rounds(ids)
    if len(rounds) < 2:
        return _reverse_scan(addend, factor, None)
    steps, num_fragments = addend.shape[0], len(ids)
    addend, factor = (part.reshape(steps, num_fragments, -1) for part in (addend, factor))
    result = np.empty_like(addend)
    for members, successors in rounds:
        start = np.zeros((len(members), addend.shape[2])) if successors is None else result[0, successors]
        result[:, members] = _reverse_scan(addend[:, members], factor[:, members], start)
    return result.reshape(steps, -1)


def rows_after(rows: FloatArray, ids: Sequence[FragmentId]) -> FloatArray:
    """The row that follows each row of a batch ``[T, sum of B]``, found as :func:`scan_batch` finds it."""
    after = np.zeros(rows.shape)
    after[:-1] = rows[1:]
    for members, successors in _rounds(ids):
        if successors is not None:
            by_fragment = (len(rows), len(ids), -1)
            after.reshape(by_fragment)[-1, members] = rows.reshape(by_fragment)[0, successors]
    return after


def discounted_returns(columns: Columns, *, gamma: float) -> FloatArray:
    """Sum of discounted rewards to the end of the episode ``[T, B]``, bootstrapped where it was cut.

    ``G_t = r_t + gamma * G_{t+1}``: Sutton and Barto, "Reinforcement Learning" (2018), equation 3.9. Equals
    ``generalized_advantages(lambda=1) + value`` up to rounding.
    """
    valid = valid_mask(columns)
    ended = columns[TERMINATED] | columns[TRUNCATED]
    inside = np.where(ended, 0.0, gamma) * valid
    inside[-1] = 0.0
    edge = np.array(columns[REWARD], np.float64)
    cut = columns[TRUNCATED].copy()
    cut[-1] = True
    edge += np.where(cut, gamma * next_values(columns), 0.0)
    edge[~valid] = 0.0
    return _reverse_scan(edge, inside, None)


def n_step_returns(columns: Columns, *, gamma: float, n_step: int) -> FloatArray:
    """Returns over at most ``n_step`` steps, then V: ``[T, B]``.

    ``G = r_t + ... + gamma^(n-1) r_{t+n-1} + gamma^n V_{t+n}``: Sutton and Barto (2018), equation 7.1.
    Shorter where the episode or the fragment ends earlier, with that end's own bootstrap.
    """
    if n_step < 1:
        raise ValueError(f"n_step is {n_step}; expected at least 1")
    valid = valid_mask(columns)
    last = columns[TERMINATED] | columns[TRUNCATED] | ~valid
    last = last.copy()
    last[-1] = True
    following, reward = next_values(columns), np.asarray(columns[REWARD], np.float64)
    returns = np.where(valid, reward + gamma * following, 0.0)
    for _ in range(n_step - 1):
        longer = returns.copy()
        longer[:-1] = np.where(last[:-1], returns[:-1], reward[:-1] + gamma * returns[1:])
        returns = longer
    return returns


def _rounds(ids: Sequence[FragmentId]) -> list[tuple[list[int], list[int] | None]]:
    """Fragments by how many successors they have in the batch, fewest first, each with its next one.

    Fragments of one round are independent of each other and are scanned together.
    """
    position = {fragment: index for index, fragment in enumerate(ids)}
    depth: dict[FragmentId, int] = {}
    rounds: list[tuple[list[int], list[int]]] = []
    for fragment in sorted(ids, key=lambda one: -one.sequence):
        following = FragmentId(fragment.sampler, fragment.sequence + 1)
        depth[fragment] = depth.get(following, -1) + 1
        if depth[fragment] == len(rounds):
            rounds.append(([], []))
        members, successors = rounds[depth[fragment]]
        members.append(position[fragment])
        if depth[fragment] > 0:
            successors.append(position[following])
    return [(members, successors or None) for members, successors in rounds]


def valid_mask(columns: Columns) -> npt.NDArray[np.bool_]:
    """Which steps are transitions, ``[T, B]``."""
    if VALID in columns:
        return np.asarray(columns[VALID])
    return np.ones(columns[REWARD].shape, np.bool_)


def _reverse_scan(addend: FloatArray, factor: FloatArray, start: Array | None) -> FloatArray:
    """``x_t = addend_t + factor_t * x_{t+1}`` from the last row to the first."""
    result = np.empty_like(addend)
    carry = np.zeros(addend.shape[1:]) if start is None else np.array(start, np.float64)
    for step in range(addend.shape[0] - 1, -1, -1):
        carry = np.multiply(carry, factor[step], out=result[step])
        carry += addend[step]
    return result
