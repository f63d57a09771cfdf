"""What every system of the end-to-end benchmark is told to do, and what it says when it is done.

Standard library only: each peer runs under the Python of its own virtual environment, as
``python -P -m benchmarks.peers.<name> --work JSON``, and prints its result as the last line of its output.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

NOT_INSTALLED = 3
"""Exit code of a peer whose package is not there; the reason is its last line."""


@dataclass(frozen=True, slots=True)
class Work:
    """One PPO training: ``lanes x steps`` transitions a batch, ``epochs`` passes in minibatches.

    2 x 64 tanh for policy and value each. It ends after ``total_steps`` environment steps, or once the last
    100 training episodes reach ``target_return`` on average.
    """

    environment: str = "CartPole-v1"
    lanes: int = 8
    steps: int = 128
    minibatch: int = 256
    epochs: int = 4
    total_steps: int = 200_000
    target_return: float | None = None
    learning_rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.9
    entropy_coefficient: float = 0.0
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5
    clip: float = 0.2
    seed: int = 1

    @property
    def batch(self) -> int:
        """Transitions per update."""
        return self.lanes * self.steps

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a system did. Times are seconds since the epoch, so that they compare across processes.

    ``began_at``: everything was set up and the first step was about to be taken. ``reached_at``: when the
    target was seen to be reached.
    """

    env_steps: int
    samples_trained: int
    began_at: float
    ended_at: float
    reached_at: float | None
    return_mean: float | None
    notes: dict[str, float | str | None]


def read_work(argv: Sequence[str] | None = None) -> Work:
    """The work from the command line of a peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", default="{}", help="JSON, the fields of Work; what is left out is default")
    return Work(**json.loads(parser.parse_args(argv).work))


def tell(outcome: Outcome) -> None:
    """Say how it went, in one line."""
    print(json.dumps(asdict(outcome)), flush=True)


def versions(*packages: str) -> dict[str, float | str | None]:
    """Installed versions, for the record."""
    return {name: importlib.metadata.version(name) for name in packages}
