"""Whatever is damaged in a good fragment is found; whatever is only different is not refused."""

from __future__ import annotations

from dataclasses import replace

import gymnasium as gym
import numpy as np
from environments import SPACES
from fragment_builder import good_fragment
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.sections import ValidationConfig
from headrace.envs.bounds import LeafBounds
from headrace.envs.spec import EnvironmentSpec, LeafSpec, spec_of
from headrace.envs.validation import check_fragment

VALIDATION = ValidationConfig()
SPECS = {kind: EnvironmentSpec(kind, spec_of(pair[0]), spec_of(pair[1])) for kind, pair in SPACES.items()}


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(SPECS)),
    steps=st.integers(1, 6),
    lanes=st.integers(1, 5),
    data=st.data(),
)
def test_any_number_that_is_not_finite_is_found(
    kind: str, steps: int, lanes: int, data: st.DataObject
) -> None:
    ended = tuple(sorted(data.draw(st.sets(st.integers(0, steps * lanes - 1)))))
    fragment = good_fragment(SPECS[kind], steps=steps, lanes=lanes, ended=ended)
    assert check_fragment(fragment, SPECS[kind], VALIDATION) is None
    floats = [name for name, column in fragment.columns.items() if column.dtype.kind == "f" and column.size]
    name = data.draw(st.sampled_from(floats))
    column = fragment.columns[name].copy()
    column.flat[data.draw(st.integers(0, column.size - 1))] = data.draw(
        st.sampled_from([np.nan, np.inf, -np.inf])
    )
    refusal = check_fragment(
        replace(fragment, columns={**fragment.columns, name: column}), SPECS[kind], VALIDATION
    )
    assert refusal is not None
    assert refusal[0] == "non_finite"
    assert refusal[1].startswith(name)


@settings(max_examples=60, deadline=None)
@given(
    flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=12, max_size=12),
    shift=st.integers(1, 11),
)
def test_ends_and_final_rows_must_agree(flags: list[tuple[bool, bool]], shift: int) -> None:
    spec = SPECS["vector_discrete"]
    ended = tuple(row for row, pair in enumerate(flags) if any(pair))
    fragment = good_fragment(spec, steps=4, lanes=3, ended=ended)
    columns = dict(fragment.columns)
    columns["terminated"] = np.array([pair[0] for pair in flags]).reshape(4, 3)
    columns["truncated"] = np.array([pair[1] for pair in flags]).reshape(4, 3)
    assert check_fragment(replace(fragment, columns=columns), spec, VALIDATION) is None
    moved = np.roll(columns["terminated"] | columns["truncated"], shift)
    if not np.array_equal(moved, columns["terminated"] | columns["truncated"]):
        columns |= {"terminated": moved, "truncated": np.zeros((4, 3), np.bool_)}
        assert check_fragment(replace(fragment, columns=columns), spec, VALIDATION) is not None


@settings(max_examples=100, deadline=None)
@given(
    low=st.lists(st.floats(-10, 0), min_size=3, max_size=3),
    high=st.lists(st.floats(0, 10), min_size=3, max_size=3),
    values=st.lists(st.floats(-20, 20, width=32), min_size=12, max_size=12),
)
def test_bounds_say_the_same_as_looking_at_every_number(
    low: list[float], high: list[float], values: list[float]
) -> None:
    space = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32), dtype=np.float32)
    leaf: LeafSpec = spec_of(space).leaf("")
    bounds = LeafBounds(leaf, ValidationConfig(space_tolerance=0.0), inside_space=True)
    array = np.array(values, np.float32).reshape(2, 2, 3)
    one_by_one = [bool(space.contains(element)) for element in array.reshape(4, 3)]
    assert bounds.accepts(array) == all(one_by_one)
    assert [bounds.accepts_row(element) for element in array.reshape(4, 3)] == one_by_one
    if not all(one_by_one):
        assert bounds.why_not(array)[0] == "outside_space"
