"""Observations as numbers a network can take: every kind of leaf becomes a slice of one flat row.

Boxes as they are (floats normalized by their running moments if asked, uint8 divided by 255), discrete
leaves one-hot, multi-binary as floats. Images large enough for the Nature CNN stay apart as uint8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.config.sections import PolicyConfig
from headrace.errors import ConfigurationError, UnsupportedSpaceError
from headrace.rl.normalizer import RunningMoments, observation_prefix
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import LeafSpec, SpaceSpec

Float32Array = npt.NDArray[np.float32]

SMALLEST_CNN_IMAGE = 36
"""Pixels: a Nature CNN reduces 36 x 36 to 1 x 1, and anything smaller to nothing."""

MAX_ONE_HOT = 65536
"""Widest one-hot row that is still sensible."""


class FeatureEncoder:
    """Turns leaves ``[N, ...]`` into one row ``[N, num_features]`` of float32, and images.

    ``image_leaves`` lists what is left to a CNN. The encoding depends on the policy version through the
    normalizer alone: :meth:`load` it first.
    """

    def __init__(self, space: SpaceSpec, policy: PolicyConfig) -> None:
        """UnsupportedSpaceError or ConfigurationError if the space can't be encoded as asked."""
        images = policy.network in ("auto", "cnn")
        self.image_leaves: tuple[LeafSpec, ...] = tuple(
            leaf for leaf in space.leaves if images and is_large_image(leaf)
        )
        if policy.network == "cnn" and not self.image_leaves:
            raise ConfigurationError(
                [
                    f"policy.network: cnn needs a uint8 image of at least {SMALLEST_CNN_IMAGE} x "
                    f"{SMALLEST_CNN_IMAGE} pixels in the observation; use mlp or auto"
                ]
            )
        self._flat_leaves = tuple(leaf for leaf in space.leaves if leaf not in self.image_leaves)
        self._widths = [_width(leaf) for leaf in self._flat_leaves]
        self.num_features = sum(self._widths)
        if self.num_features == 0 and not self.image_leaves:
            raise UnsupportedSpaceError(
                "environment.id: the observation space is empty; nothing can be learned"
            )
        self._normalized = normalized_leaves(space) if policy.normalize_observation else ()
        self._clip = np.float32(policy.observation_clip)
        self._standardize: dict[str, tuple[Float32Array, Float32Array]] = {}
        self._encoders: list[Callable[[Array], Array]] = [_encoder(leaf) for leaf in self._flat_leaves]

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Take the normalizer of a policy version. KeyError if it is absent though it is needed."""
        for leaf in self._normalized:
            moments = RunningMoments.from_columns(observation_prefix(leaf.path), parameters)
            self._standardize[leaf.path] = (
                moments.mean.astype(np.float32).reshape(-1),
                (1.0 / moments.std).astype(np.float32).reshape(-1),
            )

    def flat(self, leaves: Mapping[str, Array]) -> Float32Array:
        """The flat part ``[N, num_features]``. May be a view of the observation: don't write to it."""
        parts = [
            self._encode(leaf, encode, leaves[leaf.path])
            for leaf, encode in zip(self._flat_leaves, self._encoders, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        if not parts:
            rows = next(iter(leaves.values())).shape[0]
            return np.empty((rows, 0), np.float32)
        return np.concatenate(parts, axis=1)

    def _encode(self, leaf: LeafSpec, encode: Callable[[Array], Array], array: Array) -> Float32Array:
        rows = encode(array)
        scale = self._standardize.get(leaf.path)
        if scale is not None:
            rows = np.clip((rows - scale[0]) * scale[1], -self._clip, self._clip)
        return rows.astype(np.float32, copy=False)

    def images(self, leaves: Mapping[str, Array]) -> dict[str, Array]:
        """The image leaves, uint8 as they came."""
        return {leaf.path: leaves[leaf.path] for leaf in self.image_leaves}


def is_plain_mlp(policy: PolicyConfig, encoder: FeatureEncoder) -> bool:
    """Whether the network is one of our own MLPs: neither a user's nor a CNN."""
    return policy.network in ("auto", "mlp") and not encoder.image_leaves


def normalized_leaves(space: SpaceSpec) -> tuple[LeafSpec, ...]:
    """The leaves that ``policy.normalize_observation`` is about: boxes of floats."""
    return tuple(leaf for leaf in space.leaves if leaf.kind == "box" and np.dtype(leaf.dtype).kind == "f")


def is_large_image(leaf: LeafSpec) -> bool:
    """Whether a leaf is a uint8 image, with or without channels, large enough for the Nature CNN."""
    if leaf.kind != "box" or np.dtype(leaf.dtype) != np.uint8 or len(leaf.shape) not in (2, 3):
        return False
    height, width, _ = image_shape(leaf)
    return min(height, width) >= SMALLEST_CNN_IMAGE


def image_shape(leaf: LeafSpec) -> tuple[int, int, int]:
    """Height, width and channels; the smaller of the first and last axis is the channels."""
    if len(leaf.shape) == 2:
        return leaf.shape[0], leaf.shape[1], 1
    first, middle, last = leaf.shape
    return (first, middle, last) if last <= first else (middle, last, first)


def channels_first(leaf: LeafSpec) -> bool:
    """Whether the channels are the first axis of an image with three axes."""
    return len(leaf.shape) == 3 and leaf.shape[-1] > leaf.shape[0]


def _width(leaf: LeafSpec) -> int:
    if leaf.kind in ("discrete", "multi_discrete"):
        width = sum(leaf.nvec)
        if width > MAX_ONE_HOT:
            raise UnsupportedSpaceError(
                f"environment.id: observation {leaf.path or 'space'} has {width} values, more than the "
                f"{MAX_ONE_HOT} that fit a one-hot row; wrap the environment to give features instead"
            )
        return width
    if leaf.kind in ("box", "multi_binary") and np.dtype(leaf.dtype).kind in "fiub":
        return math.prod(leaf.shape)
    raise UnsupportedSpaceError(
        f"environment.id: no encoding for observation {leaf.path or 'space'} of kind {leaf.kind} and "
        f"dtype {leaf.dtype}"
    )


def _encoder(leaf: LeafSpec) -> Callable[[Array], Array]:
    """A function from a leaf ``[N, ...]`` to its rows ``[N, width]``."""
    width = _width(leaf)
    if leaf.kind in ("discrete", "multi_discrete"):
        sizes = np.array(leaf.nvec, np.int64)
        start = np.array(leaf.start, np.int64)
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - start
        table = np.eye(width, dtype=np.float32) if len(sizes) == 1 and width <= 1024 else None

        def one_hot(array: Array) -> Array:
            index = array.reshape(array.shape[0], -1) + first
            if table is not None:
                return table[index[:, 0]]
            rows = np.zeros((array.shape[0], width), np.float32)
            np.put_along_axis(rows, index, np.float32(1), axis=1)
            return rows

        return one_hot
    if np.dtype(leaf.dtype) == np.uint8 and leaf.kind == "box":
        scale = np.float32(1.0 / 255.0)
        return lambda array: array.reshape(array.shape[0], width) * scale
    return lambda array: array.reshape(array.shape[0], width)
