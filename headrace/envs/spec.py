"""Spaces as flat leaves: what travels, is validated and is learned from, whatever the nesting.

A Gymnasium space becomes a tuple of leaves, each with a path. A bare space is one leaf with the path
``""``; ``Dict({"a": Box, "b": Tuple((Discrete, Box))})`` has the leaves ``a``, ``b/0`` and ``b/1``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from headrace.errors import UnsupportedSpaceError
from headrace.types import Array

LeafKind = Literal["box", "discrete", "multi_discrete", "multi_binary"]
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"
_NUMBERS = "biuf"


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """One leaf of a space: arrays of ``shape`` and ``dtype``.

    ``low`` and ``high`` bound a box, inclusive: one number in a tuple if it holds for all components,
    else nested tuples of ``shape``; None if no component is bounded. ``nvec`` and ``start`` (flat, one
    entry a component) give the values ``start .. start + nvec - 1`` of discrete components.
    """

    path: str
    kind: LeafKind
    shape: tuple[int, ...]
    dtype: str
    low: tuple[Any, ...] | None = None
    high: tuple[Any, ...] | None = None
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()

    def bounds(self) -> tuple[Array, Array]:
        """Lowest and highest allowed value per component: two arrays of ``shape`` in the leaf's dtype.

        An unbounded float component has -inf or inf, so that one pair of comparisons checks any leaf.
        """
        dtype = np.dtype(self.dtype)
        if self.kind == "multi_binary":
            return np.zeros(self.shape, dtype), np.ones(self.shape, dtype)
        if self.kind != "box":
            start = np.asarray(self.start, dtype).reshape(self.shape)
            return start, start + np.asarray(self.nvec, dtype).reshape(self.shape) - np.asarray(1, dtype)
        low = np.asarray(-np.inf if self.low is None else self.low, dtype)
        high = np.asarray(np.inf if self.high is None else self.high, dtype)
        # One number holds for all components, also of a box that is itself a single number.
        low, high = (bound.reshape(()) if bound.size == 1 else bound for bound in (low, high))
        return np.array(np.broadcast_to(low, self.shape)), np.array(np.broadcast_to(high, self.shape))

    def empty(self, *leading: int) -> Array:
        """Zeros of shape ``[*leading, *shape]``."""
        return np.zeros((*leading, *self.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class SpaceSpec:
    """All leaves of a space and how they nest.

    ``structure`` is a leaf's path, ``{"dict": {key: structure}}`` or ``{"tuple": [structure]}``.
    """

    leaves: tuple[LeafSpec, ...]
    structure: Any = field(hash=False)

    @property
    def is_single(self) -> bool:
        """True for a bare space: one leaf, path ``""``, no nesting."""
        return isinstance(self.structure, str)

    def leaf(self, path: str) -> LeafSpec:
        """The leaf at ``path``; KeyError if there is none."""
        for leaf in self.leaves:
            if leaf.path == path:
                return leaf
        raise KeyError(path)

    def empty(self, *leading: int) -> dict[str, Array]:
        """Zeros for every leaf, each of shape ``[*leading, *leaf.shape]``."""
        return {leaf.path: leaf.empty(*leading) for leaf in self.leaves}

    def neutral(self, *leading: int) -> dict[str, Array]:
        """As :meth:`empty`, with the value nearest to zero that lies inside the space."""
        filled = self.empty(*leading)
        for leaf in self.leaves:
            low, high = leaf.bounds()
            filled[leaf.path][...] = np.clip(leaf.empty(), low, high)
        return filled

    def flatten(self, value: Any) -> dict[str, Array]:
        """Leaves of a nested value whose arrays have any leading axes, e.g. a batch ``[B, ...]``."""
        if self.structure == "":
            return {"": np.asarray(value)}
        found: dict[str, Array] = {}
        _collect(self.structure, value, found)
        return found

    def flatten_one(self, value: Any) -> dict[str, Array]:
        """Leaves of one element of the space, each of its leaf's own shape."""
        return self.flatten(value)

    def unflatten(self, leaves: Mapping[str, Array]) -> Any:
        """One element of the space from its leaves, in the types that the space itself samples."""
        if self.structure == "":
            return leaves[""][()]
        return _rebuild(self.structure, leaves)

    def to_plain(self) -> dict[str, Any]:
        """As json-able values; infinities are written as the strings "inf" and "-inf"."""
        return {
            "leaves": [_finite_words(asdict(leaf)) for leaf in self.leaves],
            "structure": self.structure,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SpaceSpec:
        """Inverse of :meth:`to_plain`."""
        leaves = []
        for leaf in plain["leaves"]:
            fields = {key: _tuples(value) for key, value in leaf.items() if key not in _WORDS}
            leaves.append(LeafSpec(**{key: leaf[key] for key in _WORDS}, **fields))
        return cls(tuple(leaves), plain["structure"])


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What two services must agree on about an environment before they exchange any data of it."""

    environment_id: str
    observation: SpaceSpec
    action: SpaceSpec

    def to_json(self) -> str:
        """Canonical text: equal specs give equal strings."""
        plain = {
            "environment_id": self.environment_id,
            "observation": self.observation.to_plain(),
            "action": self.action.to_plain(),
        }
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> EnvironmentSpec:
        """Inverse of :meth:`to_json`; ValueError or KeyError if the text is none."""
        plain = json.loads(text)
        return cls(
            plain["environment_id"],
            SpaceSpec.from_plain(plain["observation"]),
            SpaceSpec.from_plain(plain["action"]),
        )


def spec_of(space: spaces.Space[Any], *, name: str = "space") -> SpaceSpec:
    """The leaves of a Gymnasium space.

    Args:
        space: The space of one environment (not a batched one).
        name: What the space is called in the sentence of an error.

    Raises:
        UnsupportedSpaceError: A leaf is of a kind that nothing here can learn from; names its path.
    """
    leaves: list[LeafSpec] = []
    structure = _walk(space, "", leaves, name)
    if not leaves:
        raise UnsupportedSpaceError(f"environment.id: the {name} is {space}, which has no leaves.")
    return SpaceSpec(tuple(leaves), structure)


def _walk(space: object, path: str, leaves: list[LeafSpec], name: str) -> Any:
    if isinstance(space, spaces.Dict):
        items = {}
        for key, child in space.spaces.items():
            if not isinstance(key, str):
                raise UnsupportedSpaceError(
                    f"environment.id: the {name} has the key {key!r}{_at(path)}, but keys must be strings."
                )
            items[key] = _walk(child, _join(path, key), leaves, name)
        return {"dict": items}
    if isinstance(space, spaces.Tuple):
        return {"tuple": [_walk(child, _join(path, str(i)), leaves, name) for i, child in enumerate(space)]}
    leaf = _leaf(space, path)
    if leaf is None:
        raise UnsupportedSpaceError(
            f"environment.id: the {name} has a {type(space).__name__}{_at(path)}, "
            f"which no policy here can handle; supported are {SUPPORTED}."
        )
    leaves.append(leaf)
    return path


def _leaf(space: object, path: str) -> LeafSpec | None:
    if isinstance(space, spaces.Box) and space.dtype is not None and np.dtype(space.dtype).kind in _NUMBERS:
        low, high = _bound(space.low, -np.inf), _bound(space.high, np.inf)
        return LeafSpec(path, "box", tuple(space.shape), str(np.dtype(space.dtype)), low, high)
    if isinstance(space, spaces.Discrete):
        return LeafSpec(
            path, "discrete", (), str(np.dtype(space.dtype)), nvec=(int(space.n),), start=(int(space.start),)
        )
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = np.asarray(space.nvec), np.asarray(space.start)
        return LeafSpec(
            path,
            "multi_discrete",
            tuple(space.shape),
            str(np.dtype(space.dtype)),
            nvec=tuple(int(n) for n in nvec.ravel()),
            start=tuple(int(n) for n in start.ravel()),
        )
    if isinstance(space, spaces.MultiBinary):
        return LeafSpec(path, "multi_binary", tuple(space.shape), str(np.dtype(space.dtype)))
    return None


def _bound(values: Array, unbounded: float) -> tuple[Any, ...] | None:
    """A bound as in LeafSpec: None, one number that holds for all components, or nested tuples."""
    if np.all(values == unbounded):
        return None
    first = values.ravel()[0] if values.size else values.dtype.type(0)
    if np.all(values == first):
        return (first.item(),)
    nested: tuple[Any, ...] = _tuples(values.tolist())
    return nested


def _at(path: str) -> str:
    return f" at {path!r}" if path else ""


def _join(path: str, key: str) -> str:
    """Append a key to a path; a slash inside a key is escaped as in JSON pointers (RFC 6901)."""
    key = key.replace("~", "~0").replace("/", "~1")
    return f"{path}/{key}" if path else key


def _collect(structure: Any, value: Any, found: dict[str, Array]) -> None:
    if isinstance(structure, str):
        found[structure] = np.asarray(value)
    elif "dict" in structure:
        for key, child in structure["dict"].items():
            _collect(child, value[key], found)
    else:
        if len(value) != len(structure["tuple"]):
            raise ValueError(f"a tuple of {len(structure['tuple'])} was expected, not of {len(value)}")
        for child, part in zip(structure["tuple"], value, strict=True):
            _collect(child, part, found)


def _rebuild(structure: Any, leaves: Mapping[str, Array]) -> Any:
    if isinstance(structure, str):
        return leaves[structure][()]  # a scalar for a discrete leaf, as the space samples it
    if "dict" in structure:
        return {key: _rebuild(child, leaves) for key, child in structure["dict"].items()}
    return tuple(_rebuild(child, leaves) for child in structure["tuple"])


_WORDS = ("path", "kind", "dtype")


def _tuples(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_tuples(part) for part in value)
    return float(value) if isinstance(value, str) else value


def _finite_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite_words(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_words(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
