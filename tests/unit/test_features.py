"""Observations as numbers: each kind of leaf, exactly."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import learning
import numpy as np
import pytest
from gymnasium import spaces

from headrace.config.sections import PolicyConfig
from headrace.errors import ConfigurationError, UnsupportedSpaceError
from headrace.nets.features import FeatureEncoder
from headrace.rl.normalizer import RunningMoments
from headrace.types import Array


def encode(space: gym.Space[Any], leaves: dict[str, Array], **policy: Any) -> list[list[float]]:
    spec = learning.make_spec(space, spaces.Discrete(2)).observation
    rows: list[list[float]] = FeatureEncoder(spec, PolicyConfig(**policy)).flat(leaves).tolist()
    return rows


def test_discrete_is_one_hot_from_its_start() -> None:
    assert encode(spaces.Discrete(3, start=-1), {"": np.array([-1, 1])}) == [[1, 0, 0], [0, 0, 1]]


def test_multi_discrete_is_one_hot_per_component() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[5, 0])
    assert encode(space, {"": np.array([[6, 0], [5, 2]])}) == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_multi_binary_is_floats() -> None:
    assert encode(spaces.MultiBinary(3), {"": np.array([[1, 0, 1]], np.int8)}) == [[1, 0, 1]]


def test_small_images_are_flattened_to_unit_range() -> None:
    image = np.array([[[0, 51], [102, 255]]], np.uint8)
    assert encode(spaces.Box(0, 255, (2, 2), np.uint8), {"": image})[0] == pytest.approx([0, 0.2, 0.4, 1.0])


def test_composite_leaves_are_joined_in_order() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float64), "b": spaces.Discrete(2)})
    assert encode(space, {"a": np.array([[0.5, -0.5]]), "b": np.array([1])}) == [[0.5, -0.5, 0, 1]]


def test_float_boxes_are_normalized_and_clipped() -> None:
    spec = learning.make_spec(spaces.Box(-99, 99, (2,), np.float32), spaces.Discrete(2)).observation
    encoder = FeatureEncoder(spec, PolicyConfig(normalize_observation=True, observation_clip=2.0))
    seen = np.array([[0.0, 1.0], [4.0, 1.0]])  # means 2 and 1, deviations 2 and none
    encoder.load(RunningMoments.of(seen).columns("normalizer/"))
    assert encoder.flat({"": np.array([[4, 1], [50, 1]], np.float32)}).tolist() == [[1, 0], [2, 0]]


def test_large_images_stay_apart_for_the_cnn() -> None:
    space = spaces.Dict({"image": spaces.Box(0, 255, (36, 40, 3), np.uint8), "x": spaces.Discrete(2)})
    spec = learning.make_spec(space, spaces.Discrete(2)).observation
    encoder = FeatureEncoder(spec, PolicyConfig())
    assert [leaf.path for leaf in encoder.image_leaves] == ["image"]
    assert encoder.num_features == 2
    assert FeatureEncoder(spec, PolicyConfig(network="mlp")).num_features == 36 * 40 * 3 + 2


def test_cnn_without_an_image_is_refused_by_path() -> None:
    spec = learning.make_spec(spaces.Discrete(2), spaces.Discrete(2)).observation
    with pytest.raises(ConfigurationError, match=r"^policy\.network: cnn needs a uint8 image"):
        FeatureEncoder(spec, PolicyConfig(network="cnn"))


def test_an_observation_too_wide_for_one_hot_is_refused_by_path() -> None:
    spec = learning.make_spec(spaces.Discrete(10**6), spaces.Discrete(2)).observation
    with pytest.raises(UnsupportedSpaceError, match=r"^environment\.id: .* 1000000 values"):
        FeatureEncoder(spec, PolicyConfig())
