"""Replay buffers of other libraries: cpprb, TorchRL and Stable-Baselines3 (which has no priorities).

PEERS_PYTHON -P -m benchmarks.peers.replay_buffers cpprb|torchrl|sb3 --work JSON
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.peers.protocol import NOT_INSTALLED
from benchmarks.peers.replay_work import (
    IMPORTANCE_EXPONENT,
    PRIORITY_EXPONENT,
    ReplayWork,
    make_columns,
    serve,
)


class Cpprb:
    """cpprb's PrioritizedReplayBuffer: segment trees in C++."""

    def __init__(self, work: ReplayWork) -> None:
        import cpprb

        self._work, self._rng = work, np.random.default_rng(work.seed)
        columns = make_columns(work)
        self._columns = {
            "obs": columns["observation"],
            "act": columns["action"],
            "rew": columns["reward"],
            "next_obs": columns["next_observation"],
            "done": columns["terminated"],
        }
        self._buffer = cpprb.PrioritizedReplayBuffer(
            work.items,
            {
                name: {"shape": array.shape[1:] or 1, "dtype": array.dtype}
                for name, array in self._columns.items()
            },
            alpha=PRIORITY_EXPONENT,
        )

    def add(self) -> None:
        """Add a call's transitions."""
        self._buffer.add(**self._columns)

    def sample(self) -> None:
        """Draw a call's transitions."""
        self._indexes = self._buffer.sample(self._work.call, beta=IMPORTANCE_EXPONENT)["indexes"]

    def update(self) -> None:
        """New priorities for what was drawn."""
        self._buffer.update_priorities(self._indexes, self._rng.random(self._work.call))


class TorchRl:
    """TorchRL's TensorDictPrioritizedReplayBuffer over tensors in memory."""

    def __init__(self, work: ReplayWork) -> None:
        import torch
        import torchrl._torchrl  # noqa: F401 - its trees, compiled for one version of torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        torch.set_num_threads(1)
        self._work, self._torch = work, torch
        self._columns = TensorDict(
            {name: torch.from_numpy(array) for name, array in make_columns(work).items()},
            batch_size=[work.call],
        )
        self._buffer = TensorDictPrioritizedReplayBuffer(
            alpha=PRIORITY_EXPONENT,
            beta=IMPORTANCE_EXPONENT,
            storage=LazyTensorStorage(work.items),
            batch_size=work.call,
        )

    def add(self) -> None:
        """Add a call's transitions."""
        self._buffer.extend(self._columns)

    def sample(self) -> None:
        """Draw a call's transitions."""
        self._drawn = self._buffer.sample()

    def update(self) -> None:
        """New priorities for what was drawn."""
        self._buffer.update_priority(self._drawn["index"], self._torch.rand(self._work.call))


class StableBaselines:
    """Stable-Baselines3's ReplayBuffer: uniform; ``call`` environments add one transition each."""

    def __init__(self, work: ReplayWork) -> None:
        import gymnasium
        import torch
        from stable_baselines3.common.buffers import ReplayBuffer

        torch.set_num_threads(1)
        self._work, self._columns = work, make_columns(work)
        self._infos: list[dict[str, object]] = [{} for _ in range(work.call)]
        self._buffer = ReplayBuffer(
            work.items,
            gymnasium.spaces.Box(-np.inf, np.inf, (work.observation,), np.float32),
            gymnasium.spaces.Discrete(2),
            device="cpu",
            n_envs=work.call,
        )

    def add(self) -> None:
        """Add a call's transitions."""
        columns = self._columns
        self._buffer.add(
            columns["observation"],
            columns["next_observation"],
            columns["action"],
            columns["reward"],
            columns["terminated"],
            self._infos,
        )

    def sample(self) -> None:
        """Draw a call's transitions."""
        self._buffer.sample(self._work.call)

    def update(self) -> None:
        """It has no priorities."""
        raise NotImplementedError


if __name__ == "__main__":
    try:
        serve(
            {"cpprb": Cpprb, "torchrl": TorchRl, "sb3": StableBaselines},
            prioritized=frozenset({"cpprb", "torchrl"}),
        )
    except ImportError as error:
        print(f"not installed: {error}")
        sys.exit(NOT_INSTALLED)
