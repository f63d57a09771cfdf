"""Action distributions, the numpy half: what samplers draw from, for every leaf of an action space.

A policy network gives ``num_outputs`` numbers per observation. Each leaf of the action space reads its
own slice of them: logits of a categorical (one per component of a multi-discrete leaf), logits of
independent Bernoullis, or means of a diagonal Gaussian whose log standard deviation is a parameter that
doesn't depend on the observation. The joint log probability is the sum over leaves.

Outputs are feature-major here, ``[num_outputs, B]``: reductions over a few rows of many columns are
what numpy does fastest. For learning, actions are packed: one float32 column with ``num_slots`` numbers each
(category from 0, bit, or position in units of half the leaf's range around its centre). The torch half,
with the same layout, is :mod:`headrace.nets.distributions`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from headrace.errors import UnsupportedSpaceError
from headrace.types import Array

if TYPE_CHECKING:
    from headrace.envs.spec import LeafSpec, SpaceSpec

Float32Array = npt.NDArray[np.float32]
HeadKind = Literal["categorical", "bernoulli", "gaussian"]

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
WIDEST_RANGE = 1e9
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


class _Leaf(Protocol):
    """The distribution of one leaf. ``n`` outputs, ``m`` slots, ``B`` or ``N`` rows."""

    kind: HeadKind
    sizes: tuple[tuple[int, int], ...]  # outputs and slots of each head

    def sample(
        self, outputs: Float32Array, log_std: Float32Array, rng: np.random.Generator
    ) -> tuple[Array, Float32Array]:
        """Values ``[B, *shape]`` in the leaf's dtype and log probability ``[B]`` from outputs ``[n, B]``."""
        ...

    def mode(self, outputs: Float32Array) -> Array:
        """The most probable values ``[B, *shape]``."""
        ...

    def pack(self, values: Array) -> Array:
        """Values ``[N, *shape]`` as slots ``[N, m]``."""
        ...

    def unpack(self, slots: Float32Array) -> Array:
        """Slots ``[m, N]`` as values ``[N, *shape]`` in the leaf's dtype."""
        ...

    def clip(self, values: Array) -> Array:
        """Values as the environment may see them; the same array if nothing needs clipping."""
        ...


class ActionLayout:
    """The joint action distribution of one action space."""

    def __init__(self, space: SpaceSpec) -> None:
        """UnsupportedSpaceError if a leaf has no distribution here, or there is nothing to choose."""
        self.num_outputs = self.num_slots = self.num_log_std = 0
        self._leaves: list[tuple[str, _Leaf, slice, slice, slice]] = []
        heads: list[Head] = []
        for spec in space.leaves:
            leaf = _make_leaf(spec)
            first = self.num_outputs, self.num_slots, self.num_log_std
            heads += [self._head(leaf.kind, outputs, slots) for outputs, slots in leaf.sizes]
            last = self.num_outputs, self.num_slots, self.num_log_std
            outputs, slots, log_std = (slice(*ends) for ends in zip(first, last, strict=True))
            self._leaves.append((spec.path, leaf, outputs, slots, log_std))
        self.heads = tuple(heads)
        if self.num_slots == 0:
            raise UnsupportedSpaceError("environment.id: the action space has no component to choose")

    def _head(self, kind: HeadKind, outputs: int, slots: int) -> Head:
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

    def sample(
        self, outputs: Float32Array, log_std: Float32Array, rng: np.random.Generator
    ) -> tuple[dict[str, Array], Float32Array]:
        """Draw actions from outputs ``[num_outputs, B]``: leaves ``[B, ...]`` and log probability ``[B]``.

        Actions are in the environment's own values and dtype, but not clipped. Densities of boxes are in
        units of half the range. Consumes the generator leaf by leaf, in order.
        """
        if len(self._leaves) == 1:
            path, leaf, *_ = self._leaves[0]
            values, log_prob = leaf.sample(outputs, log_std, rng)
            return {path: values}, log_prob
        actions: dict[str, Array] = {}
        joint = np.zeros(outputs.shape[1], np.float32)
        for path, leaf, own, _, own_log_std in self._leaves:
            actions[path], log_prob = leaf.sample(outputs[own], log_std[own_log_std], rng)
            joint += log_prob
        return actions, joint

    def mode(self, outputs: Float32Array) -> dict[str, Array]:
        """The most probable action of each row, leaves ``[B, ...]``, not clipped."""
        return {path: leaf.mode(outputs[own]) for path, leaf, own, _, _ in self._leaves}

    def pack(self, actions: Mapping[str, Array]) -> Float32Array:
        """Actions, leaves ``[N, ...]``, packed ``[num_slots, N]``."""
        rows = next(iter(actions.values())).shape[0]
        packed = np.empty((self.num_slots, rows), np.float32)
        for path, leaf, _, slots, _ in self._leaves:
            packed[slots] = leaf.pack(actions[path]).T
        return packed

    def unpack(self, packed: Float32Array) -> dict[str, Array]:
        """Inverse of :meth:`pack`: leaves ``[N, ...]`` in the environment's own values and dtype."""
        return {path: leaf.unpack(packed[slots]) for path, leaf, _, slots, _ in self._leaves}

    def clip(self, actions: dict[str, Array]) -> dict[str, Array]:
        """The actions as the environment may see them, boxes clipped; the very same dict without boxes."""
        if self.num_log_std == 0:
            return actions
        return {path: leaf.clip(actions[path]) for path, leaf, _, _, _ in self._leaves}


def _make_leaf(spec: LeafSpec) -> _Leaf:
    if spec.kind in ("discrete", "multi_discrete"):
        return _Categories(spec)
    if spec.kind == "multi_binary":
        return _Bits(spec)
    if np.dtype(spec.dtype).kind == "f":
        return _Positions(spec)
    raise UnsupportedSpaceError(
        f"environment.id: no policy for action {spec.path or 'space'} of kind {spec.kind} and dtype "
        f"{spec.dtype}; discrete, multi-discrete, multi-binary and float boxes are handled"
    )


class _Categories:
    """One or several independent categoricals, each counting from its own start."""

    kind: HeadKind = "categorical"

    def __init__(self, spec: LeafSpec) -> None:
        self.sizes: tuple[tuple[int, int], ...] = tuple((categories, 1) for categories in spec.nvec)
        self._shape, self._dtype = spec.shape, np.dtype(spec.dtype)
        self._start = np.array(spec.start, np.int64)
        self._shifted = bool(self._start.any())
        edges = np.cumsum([0, *spec.nvec])
        self._slices = [slice(*edge) for edge in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]

    def sample(
        self, outputs: Float32Array, log_std: Float32Array, rng: np.random.Generator
    ) -> tuple[Array, Float32Array]:
        """Draw each component by inverse CDF."""
        index, log_prob = _draw_category(outputs[self._slices[0]], rng)
        drawn = [index]
        for component in self._slices[1:]:
            index, component_log_prob = _draw_category(outputs[component], rng)
            drawn.append(index)
            log_prob += component_log_prob
        return self._values(drawn), log_prob

    def mode(self, outputs: Float32Array) -> Array:
        """The most probable categories."""
        return self._values([outputs[component].argmax(axis=0) for component in self._slices])

    def _values(self, indices: list[Array]) -> Array:
        values = indices[0] if not self._shape else np.stack(indices, axis=1)
        if self._shifted:
            values = values + self._start
        return values.astype(self._dtype, copy=False).reshape(-1, *self._shape)

    def pack(self, values: Array) -> Array:
        """Categories from 0."""
        packed: Array = values.reshape(-1, len(self._start)) - self._start
        return packed

    def unpack(self, slots: Float32Array) -> Array:
        """Categories from their own start."""
        return self._values(list(slots.astype(np.int64)))

    def clip(self, values: Array) -> Array:
        """Categories are never out of bounds."""
        return values


class _Bits:
    """Independent bits."""

    kind: HeadKind = "bernoulli"

    def __init__(self, spec: LeafSpec) -> None:
        size = math.prod(spec.shape)
        self.sizes: tuple[tuple[int, int], ...] = ((size, size),)
        self._shape, self._dtype = spec.shape, np.dtype(spec.dtype)

    def sample(
        self, outputs: Float32Array, log_std: Float32Array, rng: np.random.Generator
    ) -> tuple[Array, Float32Array]:
        """Draw each bit."""
        uniform = rng.random(outputs.shape, dtype=np.float32)
        bits = uniform < np.exp(-np.logaddexp(np.float32(0), -outputs))
        against = np.where(bits, -outputs, outputs)
        log_prob = -np.logaddexp(np.float32(0), against).sum(axis=0, dtype=np.float32)
        return self._values(bits), log_prob

    def mode(self, outputs: Float32Array) -> Array:
        """The more probable bits."""
        return self._values(outputs > 0)

    def _values(self, bits: Array) -> Array:
        return bits.T.astype(self._dtype).reshape(-1, *self._shape)

    def pack(self, values: Array) -> Array:
        """Bits as they are."""
        return values.reshape(len(values), -1)

    def unpack(self, slots: Float32Array) -> Array:
        """Bits as they are."""
        return self._values(slots > 0.5)

    def clip(self, values: Array) -> Array:
        """Bits are never out of bounds."""
        return values


class _Positions:
    """A diagonal Gaussian, in units of half the range around the centre (of 1 around 0 where unbounded)."""

    kind: HeadKind = "gaussian"

    def __init__(self, spec: LeafSpec) -> None:
        size = math.prod(spec.shape)
        self.sizes: tuple[tuple[int, int], ...] = ((size, size),)
        self._shape, self._dtype = spec.shape, np.dtype(spec.dtype)
        self._bounds = None if spec.low is None and spec.high is None else spec.bounds()
        low, high = (bound.astype(np.float64).reshape(-1) for bound in spec.bounds())
        with np.errstate(invalid="ignore"):
            width = high - low
            bounded = np.isfinite(width) & (width > 0) & (width < WIDEST_RANGE)
            self._centre = np.where(bounded, (low + high) / 2, 0.0)
            self._unit = np.where(bounded, width / 2, 1.0)

    def sample(
        self, outputs: Float32Array, log_std: Float32Array, rng: np.random.Generator
    ) -> tuple[Array, Float32Array]:
        """Draw each component."""
        noise: Float32Array = rng.standard_normal(outputs.shape, dtype=np.float32)
        constant = np.float32(log_std.sum() + len(log_std) * _HALF_LOG_TWO_PI)
        log_prob: Float32Array = np.square(noise).sum(axis=0)
        log_prob *= np.float32(-0.5)
        log_prob -= constant
        noise *= np.exp(log_std)[:, None]
        noise += outputs
        return self._values(noise), log_prob

    def mode(self, outputs: Float32Array) -> Array:
        """The means."""
        return self._values(outputs)

    def _values(self, positions: Float32Array) -> Array:
        return (positions.T * self._unit + self._centre).astype(self._dtype).reshape(-1, *self._shape)

    def pack(self, values: Array) -> Array:
        """Positions in units of half the range."""
        return (values.reshape(len(values), -1) - self._centre) / self._unit

    def unpack(self, slots: Float32Array) -> Array:
        """Positions in the environment's own units."""
        return self._values(slots)

    def clip(self, values: Array) -> Array:
        """Positions within the bounds."""
        return values if self._bounds is None else np.clip(values, *self._bounds)


def _draw_category(logits: Float32Array, rng: np.random.Generator) -> tuple[Array, Float32Array]:
    """Category ``[B]`` by inverse CDF from logits ``[n, B]``, and its log probability ``[B]``."""
    rows = logits.shape[1]
    shifted = logits - np.maximum.reduce(logits)
    cumulative = np.add.accumulate(np.exp(shifted))
    total = cumulative[-1]
    threshold = rng.random(rows, dtype=np.float32)
    threshold *= total
    index = np.add.reduce(cumulative[:-1] <= threshold, dtype=np.int64)
    log_prob: Float32Array = shifted[index, _every(rows)]
    log_prob -= np.log(total)
    return index, log_prob


@functools.lru_cache(maxsize=16)
def _every(rows: int) -> Array:
    """0 to rows - 1."""
    return np.arange(rows)
