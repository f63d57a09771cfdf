"""Samples of replay at the learner's door: what is damaged, or never was right, goes no further."""

from __future__ import annotations

import numpy as np

from headrace.envs.spec import EnvironmentSpec, SpaceSpec
from headrace.types import ACTION, DISCOUNT, N_STEP_RETURN, NEXT_OBSERVATION, OBSERVATION, Sample, leaves_of


def problem_of(sample: Sample, spec: EnvironmentSpec) -> str:
    """What is wrong with a sample of this environment's experience, in words; empty: nothing."""
    for prefix, space in (
        (OBSERVATION, spec.observation),
        (NEXT_OBSERVATION, spec.observation),
        (ACTION, spec.action),
    ):
        problem = _leaves_problem(sample, prefix, space)
        if problem:
            return problem
    for name in (N_STEP_RETURN, DISCOUNT):
        column = sample.columns.get(name)
        if column is None or column.shape != (sample.size,) or column.dtype != np.float32:
            return f"{name} must be float32 [{sample.size}]"
        if not np.isfinite(column).all():
            return f"{name} is not finite"
    return ""


def _leaves_problem(sample: Sample, prefix: str, space: SpaceSpec) -> str:
    leaves = leaves_of(prefix, sample.columns)
    if set(leaves) != {leaf.path for leaf in space.leaves}:
        return f"{prefix} has the leaves {sorted(leaves)}"
    for leaf in space.leaves:
        array = leaves[leaf.path]
        if array.shape != (sample.size, *leaf.shape) or array.dtype != np.dtype(leaf.dtype):
            return f"{prefix} {leaf.path!r} is {array.dtype}{list(array.shape)}"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{prefix} {leaf.path!r} is not finite"
    return ""
