"""What all learners of a run hold in common: tensors in one flat vector, and running moments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.rl.learnable import Learnable
from headrace.rl.normalizer import Moments
from headrace.rl.peers import Peers
from headrace.sync.aggregation import FlatArray
from headrace.sync.layout import Layout
from headrace.types import Array


@dataclass(frozen=True, slots=True)
class Shared:
    """Views of an algorithm's own state: what is loaded here is what it goes on with.

    ``tensors`` are float32, by their names in acting parameters or training state. ``on_moments`` hears of
    moments that were loaded.
    """

    tensors: Mapping[str, Tensor]
    learnables: Sequence[Learnable]
    moments: Moments
    on_moments: Callable[[Mapping[str, Array]], None] = lambda columns: None

    @property
    def layout(self) -> Layout:
        """How the tensors lie in the flat vector."""
        return Layout(tuple(self.tensors), tuple(tuple(tensor.shape) for tensor in self.tensors.values()))

    def values(self) -> FlatArray:
        """All tensors as one vector ``[layout.size]``. A copy."""
        return _flat(self.tensors.values())

    def load_values(self, flat: FlatArray) -> None:
        """Inverse of :meth:`values`. ValueError if the length is another."""
        if len(flat) != self.layout.size:
            raise ValueError(f"{len(flat)} numbers for tensors of {self.layout.size}")
        for name, part in self.layout.split(flat).items():
            with torch.no_grad():
                self.tensors[name].copy_(torch.tensor(part))

    def load_moments(self, columns: Mapping[str, Array]) -> None:
        """Take totals of the running moments in. KeyError if one is absent."""
        self.moments.load(columns)
        self.on_moments(self.moments.columns())

    def join(self, peers: Peers) -> None:
        """From now on gradient steps are shared with ``peers``."""
        for learnable in self.learnables:
            learnable.peers = peers


def _flat(tensors: Iterable[Tensor]) -> FlatArray:
    flat: FlatArray = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).cpu().numpy()
    return flat
