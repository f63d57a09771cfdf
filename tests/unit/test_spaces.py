"""Spaces as leaves: every supported nesting goes to leaves and back; anything else is refused in words."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from environments import SPACES
from gymnasium import spaces

from headrace.envs.spec import EnvironmentSpec, spec_of
from headrace.errors import ConfigurationError, UnsupportedSpaceError

ALL = [(kind, which) for kind in SPACES for which in (0, 1)]


@pytest.mark.parametrize(("kind", "which"), ALL)
def test_an_element_survives_flattening(kind: str, which: int) -> None:
    space = SPACES[kind][which]
    space.seed(3)
    spec = spec_of(space)
    for _ in range(20):
        element = space.sample()
        leaves = spec.flatten_one(element)
        for leaf in spec.leaves:
            assert leaves[leaf.path].shape == leaf.shape
            assert leaves[leaf.path].dtype == leaf.dtype
        assert space.contains(spec.unflatten(leaves))


@pytest.mark.parametrize(("kind", "which"), ALL)
def test_a_batch_flattens_to_rows(kind: str, which: int) -> None:
    space = SPACES[kind][which]
    spec = spec_of(space)
    elements = [space.sample() for _ in range(4)]
    batch = gym.vector.utils.concatenate(space, elements, gym.vector.utils.create_empty_array(space, 4))
    leaves = spec.flatten(batch)
    for row, element in enumerate(elements):
        for path, value in spec.flatten_one(element).items():
            np.testing.assert_array_equal(leaves[path][row], value)


@pytest.mark.parametrize(("kind", "which"), ALL)
def test_samples_lie_within_the_bounds(kind: str, which: int) -> None:
    space = SPACES[kind][which]
    spec = spec_of(space)
    for _ in range(20):
        for path, value in spec.flatten_one(space.sample()).items():
            low, high = spec.leaf(path).bounds()
            assert np.all(low <= value)
            assert np.all(value <= high)


@pytest.mark.parametrize(("kind", "which"), ALL)
def test_the_neutral_element_lies_inside(kind: str, which: int) -> None:
    space = SPACES[kind][which]
    assert space.contains(spec_of(space).unflatten(spec_of(space).neutral()))


@pytest.mark.parametrize("kind", SPACES)
def test_the_text_of_a_spec_is_canonical(kind: str) -> None:
    observation, action = SPACES[kind]
    spec = EnvironmentSpec(kind, spec_of(observation), spec_of(action))
    assert EnvironmentSpec.from_json(spec.to_json()) == spec
    assert EnvironmentSpec.from_json(spec.to_json()).to_json() == spec.to_json()


def test_infinite_and_uneven_bounds_survive_the_text() -> None:
    space = gym.make("CartPole-v1").observation_space
    spec = EnvironmentSpec("CartPole-v1", spec_of(space), spec_of(spaces.Discrete(2)))
    again = EnvironmentSpec.from_json(spec.to_json())
    low, high = again.observation.leaf("").bounds()
    np.testing.assert_array_equal(low, space.low)
    np.testing.assert_array_equal(high, space.high)


def test_a_bare_space_is_one_leaf_without_a_path() -> None:
    assert [leaf.path for leaf in spec_of(spaces.Discrete(3)).leaves] == [""]


def test_paths_of_nested_leaves() -> None:
    paths = [leaf.path for leaf in spec_of(SPACES["nested"][0]).leaves]
    assert sorted(paths) == ["deep/0", "deep/1/x", "image"]


def test_a_slash_in_a_key_does_not_collide_with_nesting() -> None:
    space = spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(3)})})
    spec = spec_of(space)
    assert len({leaf.path for leaf in spec.leaves}) == 2
    assert spec.unflatten(spec.flatten_one({"a/b": 1, "a": {"b": 2}})) == {"a/b": 1, "a": {"b": 2}}


@pytest.mark.parametrize(
    "bad",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.OneOf((spaces.Discrete(2), spaces.Discrete(3))),
        spaces.Graph(spaces.Box(-1, 1, (2,)), None),
    ],
    ids=lambda space: type(space).__name__,
)
def test_an_unsupported_leaf_is_named_with_its_path(bad: spaces.Space[Any]) -> None:
    space = spaces.Dict({"good": spaces.Discrete(2), "deep": spaces.Tuple((spaces.Discrete(2), bad))})
    with pytest.raises(UnsupportedSpaceError) as refusal:
        spec_of(space, name="observation space")
    (sentence,) = refusal.value.problems
    assert sentence.startswith(
        f"environment.id: the observation space has a {type(bad).__name__} at 'deep/1'"
    )
    assert "supported are Box" in sentence


def test_a_space_without_leaves_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no leaves"):
        spec_of(spaces.Dict({}))


def test_the_bounds_of_a_box_that_is_a_single_number() -> None:
    low, high = spec_of(spaces.Box(-1.5, 2.0, (), np.float32)).leaves[0].bounds()
    assert (low.shape, high.shape) == ((), ())
    assert (float(low), float(high)) == (-1.5, 2.0)
