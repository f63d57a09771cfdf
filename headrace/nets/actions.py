"""Action distributions, the numpy half: what samplers draw from, for every leaf of an action space.

A policy network gives ``num_outputs`` numbers per observation. Each leaf of the action space reads its
own slice of them: logits of a categorical (one per component of a multi-discrete leaf), logits of
independent Bernoullis, or means of a diagonal Gaussian whose log standard deviation is a parameter that
doesn't depend on the observation. The joint log probability is the sum over leaves.

Inside, an action is packed: one float32 row with ``num_slots`` numbers (category index from 0, bit, or
position in units of half the leaf's range around its centre). The torch half, with the same layout, is
:mod:`headrace.nets.distributions`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from headrace.errors import UnsupportedSpaceError
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import LeafSpec, SpaceSpec

Float32Array = npt.NDArray[np.float32]
HeadKind = Literal["categorical", "bernoulli", "gaussian"]

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_WIDEST_RANGE = 1e9
"""A box as wide as its dtype allows is unbounded in truth; its half range is no unit to explore in."""


@dataclass(frozen=True, slots=True)
class Head:
    """One independent part of the joint distribution and where its numbers lie.

    ``outputs`` slices the network's outputs, ``slots`` the packed action, ``log_std`` the vector of log
    standard deviations (empty unless Gaussian).
    """

    kind: HeadKind
    outputs: slice
    slots: slice
    log_std: slice


@dataclass(frozen=True, slots=True)
class _PackedLeaf:
    """How a leaf's environment values and its packed slots translate: ``value = offset + scale * packed``."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    slots: slice
    offset: Array  # [slots]
    scale: Array  # [slots]
    bounds: tuple[Array, Array] | None  # each of the leaf's shape; None: nothing to clip


class ActionLayout:
    """The joint action distribution of one action space."""

    def __init__(self, space: SpaceSpec) -> None:
        """UnsupportedSpaceError if a leaf has no distribution here."""
        self.heads: tuple[Head, ...]
        self.num_outputs = self.num_slots = self.num_log_std = 0
        self._leaves: list[_PackedLeaf] = []
        heads: list[Head] = []
        for leaf in space.leaves:
            heads.extend(self._add(leaf))
        self.heads = tuple(heads)
        if self.num_slots == 0:
            raise UnsupportedSpaceError("environment.id: the action space has no component to choose")

    def _add(self, leaf: LeafSpec) -> Iterator[Head]:
        first_slot = self.num_slots
        if leaf.kind in ("discrete", "multi_discrete"):
            for categories in leaf.nvec:
                yield self._head("categorical", outputs=categories, slots=1)
            self._pack(leaf, first_slot, np.array(leaf.start), np.ones(len(leaf.nvec), np.int64))
        elif leaf.kind == "multi_binary":
            size = math.prod(leaf.shape)
            yield self._head("bernoulli", outputs=size, slots=size)
            self._pack(leaf, first_slot, np.zeros(size, np.int64), np.ones(size, np.int64))
        elif leaf.kind == "box" and np.dtype(leaf.dtype).kind == "f":
            size = math.prod(leaf.shape)
            yield self._head("gaussian", outputs=size, slots=size)
            centre, half_range = _units(leaf)
            self._pack(leaf, first_slot, centre, half_range)
        else:
            raise UnsupportedSpaceError(
                f"environment.id: no policy for action {leaf.path or 'space'} of kind {leaf.kind} and dtype "
                f"{leaf.dtype}; discrete, multi-discrete, multi-binary and float boxes are handled"
            )

    def _head(self, kind: HeadKind, *, outputs: int, slots: int) -> Head:
        log_std = outputs if kind == "gaussian" else 0
        head = Head(
            kind,
            slice(self.num_outputs, self.num_outputs + outputs),
            slice(self.num_slots, self.num_slots + slots),
            slice(self.num_log_std, self.num_log_std + log_std),
        )
        self.num_outputs += outputs
        self.num_slots += slots
        self.num_log_std += log_std
        return head

    def _pack(self, leaf: LeafSpec, first: int, offset: Array, scale: Array) -> None:
        bounds = None
        if leaf.kind == "box" and (leaf.low is not None or leaf.high is not None):
            bounds = leaf.bounds()
        slots = slice(first, self.num_slots)
        self._leaves.append(
            _PackedLeaf(leaf.path, leaf.shape, np.dtype(leaf.dtype), slots, offset, scale, bounds)
        )

    def sample(
        self, outputs: Float32Array, log_std: Float32Array, rng: np.random.Generator
    ) -> tuple[Float32Array, Float32Array]:
        """Draw packed actions ``[B, slots]`` and their log probability ``[B]`` from outputs ``[B, outputs]``.

        Consumes the generator head by head, in leaf order. Densities of boxes are those of the packed
        value, in units of half the range.
        """
        if len(self.heads) == 1 and self.heads[0].kind == "categorical":
            index, log_prob = _sample_categorical(outputs, rng)
            return index.astype(np.float32)[:, None], log_prob
        packed = np.empty((outputs.shape[0], self.num_slots), np.float32)
        joint = np.zeros(outputs.shape[0], np.float32)
        for head in self.heads:
            own = outputs[:, head.outputs]
            if head.kind == "categorical":
                index, log_prob = _sample_categorical(own, rng)
                packed[:, head.slots.start] = index
            elif head.kind == "bernoulli":
                packed[:, head.slots], log_prob = _sample_bernoulli(own, rng)
            else:
                packed[:, head.slots], log_prob = _sample_gaussian(own, log_std[head.log_std], rng)
            joint += log_prob
        return packed, joint

    def mode(self, outputs: Float32Array) -> Float32Array:
        """The most probable packed action ``[B, slots]``."""
        packed = np.empty((outputs.shape[0], self.num_slots), np.float32)
        for head in self.heads:
            own = outputs[:, head.outputs]
            if head.kind == "categorical":
                packed[:, head.slots.start] = own.argmax(axis=1)
            elif head.kind == "bernoulli":
                packed[:, head.slots] = own > 0
            else:
                packed[:, head.slots] = own
        return packed

    def unpack(self, packed: Float32Array) -> dict[str, Array]:
        """Packed actions ``[B, slots]`` as leaves ``[B, ...]`` in the environment's own values and dtype."""
        leaves: dict[str, Array] = {}
        for leaf in self._leaves:
            own = packed[:, leaf.slots]
            if leaf.dtype.kind != "f":
                own = own.astype(leaf.dtype)
                own += leaf.offset.astype(leaf.dtype)
            else:
                own = (own * leaf.scale + leaf.offset).astype(leaf.dtype)
            leaves[leaf.path] = own.reshape(-1, *leaf.shape)
        return leaves

    def pack(self, leaves: Mapping[str, Array]) -> Float32Array:
        """Inverse of :meth:`unpack`, for any number of rows ``[N, ...]``."""
        rows = next(iter(leaves.values())).shape[0]
        packed = np.empty((rows, self.num_slots), np.float32)
        for leaf in self._leaves:
            own = leaves[leaf.path].reshape(rows, -1)
            packed[:, leaf.slots] = (own - leaf.offset) / leaf.scale
        return packed

    def clip(self, leaves: dict[str, Array]) -> dict[str, Array]:
        """The actions as the environment may see them: boxes clipped to their bounds.

        The very same dict if no leaf is bounded.
        """
        clipped = {
            leaf.path: np.clip(leaves[leaf.path], *leaf.bounds)
            for leaf in self._leaves
            if leaf.bounds is not None
        }
        return {**leaves, **clipped} if clipped else leaves


def _units(leaf: LeafSpec) -> tuple[Array, Array]:
    """Centre and half range of each component of a box, flat float64; 0 and 1 where it isn't bounded."""
    low, high = (bound.astype(np.float64).reshape(-1) for bound in leaf.bounds())
    with np.errstate(invalid="ignore"):
        width = high - low
        bounded = np.isfinite(width) & (width > 0) & (width < _WIDEST_RANGE)
        return np.where(bounded, (low + high) / 2, 0.0), np.where(bounded, width / 2, 1.0)


def _sample_categorical(logits: Float32Array, rng: np.random.Generator) -> tuple[Array, Float32Array]:
    """Category ``[B]`` by inverse CDF, and its log probability ``[B]``."""
    rows = logits.shape[0]
    shifted = logits - logits.max(axis=1, keepdims=True)
    cumulative = np.exp(shifted).cumsum(axis=1)
    total = cumulative[:, -1]
    threshold = rng.random(rows, dtype=np.float32) * total
    index = (cumulative[:, :-1] <= threshold[:, None]).sum(axis=1)
    return index, shifted[np.arange(rows), index] - np.log(total)


def _sample_bernoulli(logits: Float32Array, rng: np.random.Generator) -> tuple[Float32Array, Float32Array]:
    """Bits ``[B, n]`` and their joint log probability ``[B]``."""
    uniform = rng.random(logits.shape, dtype=np.float32)
    bits = uniform < 1.0 / (1.0 + np.exp(-logits))
    signed = np.where(bits, -logits, logits)
    log_prob = -np.logaddexp(np.float32(0), signed).sum(axis=1, dtype=np.float32)
    return bits.astype(np.float32), log_prob


def _sample_gaussian(
    mean: Float32Array, log_std: Float32Array, rng: np.random.Generator
) -> tuple[Float32Array, Float32Array]:
    """Positions ``[B, n]`` and their joint log density ``[B]``."""
    noise: Float32Array = rng.standard_normal(mean.shape, dtype=np.float32)
    constant = np.float32(log_std.sum() + mean.shape[1] * _HALF_LOG_TWO_PI)
    log_prob = -0.5 * np.square(noise).sum(axis=1, dtype=np.float32) - constant
    return mean + np.exp(log_std) * noise, log_prob.astype(np.float32)
