"""Good fragments of any environment's spec, to be damaged by tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.envs.spec import EnvironmentSpec, LeafSpec
from headrace.types import Fragment, FragmentId, PolicyVersion, SamplerIdentity, as_columns

Array = npt.NDArray[Any]


def good_fragment(
    spec: EnvironmentSpec, *, steps: int = 7, lanes: int = 3, ended: tuple[int, ...] = (4, 11), seed: int = 0
) -> Fragment:
    """Every column filled with random values inside the spaces; ``ended`` are rows t * B + lane."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Array] = {}
    for leaf in spec.observation.leaves:
        for prefix, leading in (
            ("observation", (steps, lanes)),
            ("bootstrap_observation", (lanes,)),
            ("final_observation", (len(ended),)),
        ):
            columns.update(as_columns(prefix, {leaf.path: _inside(leaf, leading, rng)}))
    for leaf in spec.action.leaves:
        columns.update(as_columns("action", {leaf.path: _inside(leaf, (steps, lanes), rng)}))
    terminated = np.zeros(steps * lanes, np.bool_)
    truncated = np.zeros(steps * lanes, np.bool_)
    terminated[list(ended[::2])] = True
    truncated[list(ended[1::2])] = True
    for name, shape in {
        "reward": (steps, lanes),
        "behavior_log_prob": (steps, lanes),
        "value": (steps, lanes),
        "bootstrap_value": (lanes,),
        "final_value": (len(ended),),
    }.items():
        columns[name] = rng.normal(size=shape).astype(np.float32)
    columns |= {
        "terminated": terminated.reshape(steps, lanes),
        "truncated": truncated.reshape(steps, lanes),
        "final_index": np.array(ended, np.int32),
        "lane_seed": rng.integers(0, 2**31, lanes),
        "lane_episode": np.zeros(lanes, np.int64),
        "lane_step": np.zeros(lanes, np.int32),
        "episode/return": rng.normal(size=len(ended)),
        "episode/length": np.ones(len(ended), np.int32),
    }
    return Fragment(
        id=FragmentId(SamplerIdentity("s0", 0), 0),
        policy_version=PolicyVersion(1, 1),
        config_digest="d",
        columns=columns,
        num_transitions=steps * lanes,
        produced_through=steps * lanes,
    )


def with_columns(fragment: Fragment, **changed: Array) -> Fragment:
    """The fragment with some columns replaced; ``__`` in a name stands for a slash."""
    columns = {**fragment.columns, **{name.replace("__", "/"): array for name, array in changed.items()}}
    return replace(fragment, columns=columns)


def _inside(leaf: LeafSpec, leading: tuple[int, ...], rng: np.random.Generator) -> Array:
    low, high = leaf.bounds()
    if np.dtype(leaf.dtype).kind == "f":
        low, high = np.maximum(low, -100), np.minimum(high, 100)
        return rng.uniform(low, high, (*leading, *leaf.shape)).astype(leaf.dtype)
    drawn = rng.integers(low.astype(np.int64), high.astype(np.int64) + 1, (*leading, *leaf.shape))
    return np.asarray(drawn, leaf.dtype)
