"""Is a fragment fit to be learned from? Asked by the sampler before it sends and by the learner at its door.

A fragment that was refused is never trained on. Columns are checked by reductions, without copies or
masks of their size, so the cost is that of reading the fragment once or twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.config.sections import ValidationConfig
from headrace.envs.bounds import NON_FINITE, OUT_OF_RANGE, WRONG_DTYPE, WRONG_SHAPE, LeafBounds
from headrace.envs.spec import EnvironmentSpec, LeafSpec
from headrace.types import (
    ACTION,
    BEHAVIOR_LOG_PROB,
    BOOTSTRAP_OBSERVATION,
    BOOTSTRAP_VALUE,
    EPISODE_LENGTH,
    EPISODE_RETURN,
    FINAL_INDEX,
    FINAL_OBSERVATION,
    FINAL_VALUE,
    LANE_EPISODE,
    LANE_SEED,
    LANE_STEP,
    NORMALIZER,
    OBSERVATION,
    PRIORITY,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    VALUE,
    Array,
    Columns,
    Fragment,
)

MISSING_COLUMN = "missing_column"
INCONSISTENT = "inconsistent"
Refusal = tuple[str, str]
"""Reason (one word, bounded set) and detail (a sentence with the column and the place)."""

_SMALL = 8192  # elements
_STEPS, _LANES, _FINALS = "TB", "B", "K"
_PLAIN = (
    (REWARD, "float32", _STEPS),
    (TERMINATED, "bool", _STEPS),
    (TRUNCATED, "bool", _STEPS),
    (BEHAVIOR_LOG_PROB, "float32", _STEPS),
    (VALUE, "float32", _STEPS),
    (BOOTSTRAP_VALUE, "float32", _LANES),
    (FINAL_INDEX, "int32", _FINALS),
    (FINAL_VALUE, "float32", _FINALS),
    (LANE_SEED, "int64", _LANES),
    (LANE_EPISODE, "int64", _LANES),
    (LANE_STEP, "int32", _LANES),
)
_FINITE = (BEHAVIOR_LOG_PROB, VALUE, BOOTSTRAP_VALUE, FINAL_VALUE)  # of the acting policy; replay drops them
_OPTIONAL = (VALID, EPISODE_RETURN, EPISODE_LENGTH)


@dataclass(frozen=True, slots=True)
class _LeafColumn:
    """A column that holds a leaf. ``bounds`` None: any finite value (a recorded continuous action)."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    leading: str
    bounds: LeafBounds | None


class FragmentCheck:
    """Checks fragments of one environment; made once, used for each.

    ``stored``: fragments as replay stores them: without what the acting policy thought of them, with
    priorities, and with last observations of those episodes only that a target bootstraps from.
    """

    def __init__(self, spec: EnvironmentSpec, validation: ValidationConfig, *, stored: bool = False) -> None:
        self._stored = stored
        self._reward_limit = validation.reward_max_abs
        self._reward_limit_squared = min(self._reward_limit**2, float(np.finfo(np.float32).max))
        self._finite = (PRIORITY,) if stored else _FINITE
        plain = [*(row for row in _PLAIN if not (stored and row[0] in _FINITE))]
        plain += [(PRIORITY, "float32", _STEPS)] if stored else []
        self._plain = [(name, np.dtype(dtype), leading) for name, dtype, leading in plain]
        self._leaves: list[_LeafColumn] = []
        for leaf in spec.observation.leaves:
            bounds = LeafBounds(leaf, validation, inside_space=validation.check_space)
            for prefix, leading in (
                (OBSERVATION, _STEPS),
                (BOOTSTRAP_OBSERVATION, _LANES),
                (FINAL_OBSERVATION, _FINALS),
            ):
                self._leaves.append(_column(prefix, leaf, leading, bounds))
        for leaf in spec.action.leaves:
            # A recorded continuous action is what its log probability was computed for: not clipped.
            free = leaf.kind == "box" and np.dtype(leaf.dtype).kind == "f"
            bounds_or_none = None if free else LeafBounds(leaf, validation, inside_space=True)
            self._leaves.append(_column(ACTION, leaf, _STEPS, bounds_or_none))
        known = [name for name, _, _ in self._plain] + [column.name for column in self._leaves]
        self._known = frozenset((*known, *_OPTIONAL))

    def __call__(self, fragment: Fragment) -> Refusal | None:
        """None if the fragment is good, else what is wrong with it first."""
        with np.errstate(all="ignore"):
            return self._check(fragment)

    def _check(self, fragment: Fragment) -> Refusal | None:
        columns = fragment.columns
        reward = columns.get(REWARD)
        if reward is None:
            return _missing(REWARD)
        if reward.ndim != 2 or reward.size == 0:
            return WRONG_SHAPE, f"reward has shape {reward.shape}, not [T, B]"
        finals = columns.get(FINAL_INDEX)
        if finals is None:
            return _missing(FINAL_INDEX)
        steps: tuple[int, ...] = reward.shape
        leading = {_STEPS: steps, _LANES: steps[1:], _FINALS: finals.shape[:1]}
        return (
            self._check_forms(columns, leading)
            or self._check_flags(fragment, steps)
            or self._check_numbers(columns)
            or self._check_leaves(columns, steps[1])
            or self._check_others(columns)
        )

    def _check_forms(self, columns: Columns, leading: dict[str, tuple[int, ...]]) -> Refusal | None:
        """Every required column is there, with its dtype and shape."""
        for name, dtype, axes in self._plain:
            wrong = _form(columns.get(name), name, dtype, leading[axes])
            if wrong is not None:
                return wrong
        for leaf in self._leaves:
            wrong = _form(columns.get(leaf.name), leaf.name, leaf.dtype, leading[leaf.leading] + leaf.shape)
            if wrong is not None:
                return wrong
        return None

    def _check_flags(self, fragment: Fragment, steps: tuple[int, ...]) -> Refusal | None:
        """Flags are flags, ended rows are those with a final observation, and the count is right."""
        columns = fragment.columns
        valid = columns.get(VALID)
        count = steps[0] * steps[1]
        if valid is not None:
            wrong = _form(valid, VALID, np.dtype(np.bool_), steps)
            if wrong is not None:
                return wrong
            count = int(np.count_nonzero(valid))
        if valid is not None and np.maximum.reduce(valid.view(np.uint8), axis=None) > 1:
            return WRONG_DTYPE, f"{VALID} holds bytes other than 0 and 1"
        if count != fragment.num_transitions:
            return INCONSISTENT, f"num_transitions is {fragment.num_transitions}, but {count} steps are valid"
        flags = np.bitwise_or(columns[TERMINATED].view(np.uint8), columns[TRUNCATED].view(np.uint8))
        if np.maximum.reduce(flags, axis=None) > 1:
            return WRONG_DTYPE, f"{TERMINATED} or {TRUNCATED} holds bytes other than 0 and 1"
        if self._stored:
            flags = columns[TRUNCATED] & ~columns[TERMINATED]
        ended, given = np.flatnonzero(flags), columns[FINAL_INDEX]
        if ended.shape != given.shape or np.count_nonzero(ended != given):
            return INCONSISTENT, f"{FINAL_INDEX} is not the ascending list of the ended steps"
        return None

    def _check_numbers(self, columns: Columns) -> Refusal | None:
        """Rewards in range; log probabilities and values finite."""
        reward, limit = columns[REWARD], self._reward_limit
        # The square sum bounds the largest magnitude; only if it is too large are the rewards looked at.
        if not _square_sum(reward) <= self._reward_limit_squared and not bool(
            np.minimum.reduce(reward, axis=None) >= -limit and np.maximum.reduce(reward, axis=None) <= limit
        ):
            if not _finite(reward):
                return _not_finite(REWARD, reward)
            return OUT_OF_RANGE, f"reward reaches {float(np.abs(reward).max())!r}, beyond {limit!r}"
        for name in self._finite:
            if not _finite(columns[name]):
                return _not_finite(name, columns[name])
        if self._stored and np.minimum.reduce(columns[PRIORITY], axis=None) < 0:
            return OUT_OF_RANGE, f"{PRIORITY} is negative"
        return None

    def _check_leaves(self, columns: Columns, num_lanes: int) -> Refusal | None:
        """Observations and actions finite and inside their spaces; invalid steps only finite."""
        for leaf in self._leaves:
            column = columns[leaf.name]
            if leaf.bounds is None:
                if not _finite(column):
                    return _not_finite(leaf.name, column)
            elif not leaf.bounds.accepts(column):
                valid = columns.get(VALID) if leaf.leading == _STEPS else None
                if valid is not None and _finite(column) and leaf.bounds.accepts(column[valid]):
                    continue
                lanes = num_lanes if leaf.leading == _STEPS else 0
                return leaf.bounds.explain(column, leaf.name, num_lanes=lanes)
        return None

    def _check_others(self, columns: Columns) -> Refusal | None:
        """Optional and unknown columns: plain finite numbers; moments not negative."""
        returns, lengths = columns.get(EPISODE_RETURN), columns.get(EPISODE_LENGTH)
        if returns is not None or lengths is not None:
            if returns is None or lengths is None or returns.shape != lengths.shape or returns.ndim != 1:
                return INCONSISTENT, f"{EPISODE_RETURN} and {EPISODE_LENGTH} don't go together"
            if returns.dtype != np.float64 or lengths.dtype != np.int32:
                return WRONG_DTYPE, f"{EPISODE_RETURN} is {returns.dtype}, {EPISODE_LENGTH} {lengths.dtype}"
            if not _finite(returns):
                return _not_finite(EPISODE_RETURN, returns)
        if len(columns) <= len(self._known):
            others = columns.keys() - self._known
            if not others:
                return None
        for name in columns.keys() - self._known:
            column = columns[name]
            if column.dtype.kind not in "biuf":
                return WRONG_DTYPE, f"{name} has dtype {column.dtype}"
            if not _finite(column):
                return _not_finite(name, column)
            if name.startswith(NORMALIZER + "/") and not name.endswith("/mean") and np.any(column < 0):
                return OUT_OF_RANGE, f"{name} is negative"
        return None


def check_fragment(fragment: Fragment, spec: EnvironmentSpec, validation: ValidationConfig) -> Refusal | None:
    """None if ``fragment`` may be trained on, else (reason, detail) of the first thing wrong with it.

    Reasons: ``missing_column``, ``wrong_dtype``, ``wrong_shape``, ``inconsistent``, ``non_finite``,
    ``out_of_range``, ``outside_space``.
    """
    key = (id(spec), id(validation))
    found = _checks.get(key)
    if found is None:
        if len(_checks) >= _MAX_CHECKS:
            _checks.clear()
        found = (spec, validation, FragmentCheck(spec, validation))
        _checks[key] = found
    return found[2](fragment)


_MAX_CHECKS = 8
_checks: dict[tuple[int, int], tuple[EnvironmentSpec, ValidationConfig, FragmentCheck]] = {}
"""Checks by the identity of what they were made of, which the entry keeps alive."""


def _column(prefix: str, leaf: LeafSpec, leading: str, bounds: LeafBounds | None) -> _LeafColumn:
    name = f"{prefix}/{leaf.path}" if leaf.path else prefix
    return _LeafColumn(name, np.dtype(leaf.dtype), leaf.shape, leading, bounds)


def _form(
    column: Array | None, name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]
) -> Refusal | None:
    if column is None:
        return _missing(name)
    if column.dtype != dtype:
        return WRONG_DTYPE, f"{name} has dtype {column.dtype}, expected {dtype}"
    if column.shape != shape:
        return WRONG_SHAPE, f"{name} has shape {column.shape}, expected {shape}"
    return None


def _missing(name: str) -> Refusal:
    return MISSING_COLUMN, f"{name} is missing"


def _finite(column: Array) -> bool:
    """A sum is finite only if all its terms are; if it overflows, the terms are looked at."""
    if column.dtype.kind != "f" or math.isfinite(_square_sum(column)):
        return True
    return bool(np.isfinite(column).all())


def _square_sum(column: Array) -> float:
    """A bound on the square of every element that is not finite if any element isn't.

    The product is the fastest call for small arrays. For large ones it would start threads, so there the
    largest magnitude, squared, takes its place.
    """
    if column.size <= _SMALL:
        return float(np.vdot(column, column))
    lowest, highest = np.minimum.reduce(column, axis=None), np.maximum.reduce(column, axis=None)
    return float(max(abs(float(lowest)), abs(float(highest)))) ** 2 if lowest <= highest else math.nan


def _not_finite(name: str, column: Array) -> Refusal:
    place = np.argwhere(~np.isfinite(column))[0].tolist()
    return NON_FINITE, f"{name}{place} is {column[tuple(place)].item()!r}"
