"""The parameters that learners share, as the parameter server keeps them between rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headrace.checkpoint import Blob, VersionRecord
from headrace.clients.blobs import STATE, VECTOR
from headrace.config.choices import exchanges_gradients, on_policy
from headrace.config.sections import Config
from headrace.rl.learnable import Learnable
from headrace.rl.normalizer import RunningMoments
from headrace.rl.optimizers import make_optimizer
from headrace.sync.aggregation import FlatArray, weighted_mean
from headrace.sync.contribution import DELTA, Contribution
from headrace.sync.layout import Layout
from headrace.sync.vectors import encode_vector
from headrace.types import Array, PolicyVersion
from headrace.v1 import parameters_pb2


@dataclass(frozen=True, slots=True)
class Part:
    """A contribution to a round. ``factor``: by its staleness; ``given``: the values it started from.

    ``num_samples``: behind its vector, of the whole group where it brings a group's.
    """

    contribution: Contribution
    factor: float
    given: FlatArray
    num_samples: int

    @property
    def weight(self) -> float:
        """Samples, less for what is stale."""
        return self.num_samples * self.factor

    @property
    def change(self) -> FlatArray:
        """How the learner's values have moved ``[N]``."""
        vector = self.contribution.vector
        return vector - self.given if self.contribution.kind == "values" else vector


class SharedModel:
    """Values, running moments and, where learners hand in gradients, the optimizer.

    Invariant: ``values`` is never written to; each round makes a new one, so that whoever was given the one
    before still has it. Not thread-safe.
    """

    def __init__(self, config: Config, layout: Layout, record: VersionRecord) -> None:
        """Begin with a published version. KeyError or ValueError if its tensors are others."""
        acting, training = record.parameters(), record.training_state() or {}
        self.layout = layout
        self._acting_names = frozenset(layout.names) & acting.keys()
        self._training = {name: array for name, array in training.items() if name not in layout.names}
        self.state = {name: array for name, array in acting.items() if name not in layout.names}
        self.values: FlatArray = layout.join({**acting, **training})
        self.version = record.version
        self._blobs: dict[parameters_pb2.BlobKind, Blob] = {}
        self._working = torch.tensor(self.values)
        self._gradient = torch.zeros_like(self._working)
        self._learnable = self._make_learnable(config) if exchanges_gradients(config) else None
        if self._learnable is not None and record.training is not None:
            self._learnable.load(training)

    @property
    def takes_gradients(self) -> bool:
        """Whether contributions are gradients; else they are values or changes of them."""
        return self._learnable is not None

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return int(self.values.nbytes)

    def mismatch(self, state: Mapping[str, Array]) -> str:
        """Why a contribution's ``state`` can't be taken in, in words; empty if it can."""
        for name, array in state.items():
            known = self.state.get(name.removeprefix(DELTA))
            if known is None:
                return f"{name} is not part of this run's versions"
            if (array.shape, array.dtype) != (known.shape, known.dtype):
                return (
                    f"{name} is {array.dtype}{list(array.shape)}, expected {known.dtype}{list(known.shape)}"
                )
            absent = set() if not name.startswith(DELTA) else _moments_beside(name) - state.keys()
            if absent:
                return f"{name} came without {', '.join(sorted(absent))}"
        return ""

    def step(self, parts: Sequence[Part]) -> None:
        """Take a round in: its mean by weight, shortened where all of it is stale.

        A round without a vector of positive weight changes nothing but the state.
        """
        used = [part for part in parts if part.contribution.kind != "none" and part.weight > 0.0]
        if used:
            scale = max(part.factor for part in used)
            if self._learnable is not None:
                self._step_along(self._learnable, used, scale)
            else:
                self.values = self._moved(used, scale)
        for part in parts:
            self._take_state(part.contribution.state)
            if part.contribution.training is not None:
                self._take_training(part.contribution.training)

    def acting(self) -> Blob:
        """What a sampler needs to act."""
        tensors = self.layout.split(self.values)
        return Blob.encode({**{name: tensors[name] for name in self._acting_names}, **self.state})

    def training(self, progress: Mapping[str, Array]) -> Blob:
        """What a learner needs to go on, with the counters of the run."""
        tensors = self.layout.split(self.values)
        others = {name: tensors[name] for name in self.layout.names if name not in self._acting_names}
        optimizer = {} if self._learnable is None else self._learnable.state()
        return Blob.encode({**self._training, **others, **optimizer, **progress})

    def published(self, version: PolicyVersion) -> None:
        """What it holds now is ``version``."""
        self.version = version
        self._blobs = {}

    def blobs(self) -> Mapping[parameters_pb2.BlobKind, Blob]:
        """Vector and state of the version, encoded once for all who are sent it."""
        if not self._blobs:
            vector = Blob.of(encode_vector(self.values, "float32"))
            self._blobs = {VECTOR: vector, STATE: Blob.encode(self.state)}
        return self._blobs

    def _make_learnable(self, config: Config) -> Learnable:
        algorithm = on_policy(config)
        optimizer = make_optimizer(algorithm, self._working, self._gradient)
        return Learnable(self._gradient, optimizer, max_norm=algorithm.max_grad_norm)

    def _step_along(self, learnable: Learnable, parts: Sequence[Part], scale: float) -> None:
        rates = [part.contribution.learning_rate for part in parts]
        gradient = weighted_mean(
            [part.contribution.vector for part in parts], [part.weight for part in parts]
        )
        self._gradient.copy_(torch.from_numpy(gradient))
        learnable.step(scale * sum(rates) / len(rates), rows=1)
        self.values = self._working.numpy().copy()

    def _moved(self, parts: Sequence[Part], scale: float) -> FlatArray:
        first = parts[0]
        alone = len(parts) == 1 and scale == 1.0 and first.given is self.values
        if alone and first.contribution.kind == "values":
            return first.contribution.vector.copy()  # bit for bit what the learner has
        change = weighted_mean([part.change for part in parts], [part.weight for part in parts])
        with np.errstate(over="ignore"):  # what has become infinite is refused when it is published
            change *= np.float32(scale)
            change += self.values
        return change

    def _take_state(self, state: Mapping[str, Array]) -> None:
        for name, array in state.items():
            if not name.startswith(DELTA):
                self.state[name] = array
            elif name.endswith("/m2"):
                prefix = name.removeprefix(DELTA).removesuffix("/m2")
                total = RunningMoments.from_columns(prefix, self.state)
                total.merge(RunningMoments.from_columns(DELTA + prefix, state))
                self.state.update(total.columns(prefix))

    def _take_training(self, training: Mapping[str, Array]) -> None:
        self._training = {name: array for name, array in training.items() if name not in self.layout.names}


def _moments_beside(name: str) -> set[str]:
    """Names of all the columns that running moments have, one of which is ``name``."""
    return set(RunningMoments.empty(()).columns(name.rpartition("/")[0]))
