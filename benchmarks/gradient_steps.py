"""How many gradient steps an off-policy algorithm takes a second, against the same one in plain torch.

Both alternately in one run, the same networks and minibatches, one torch thread.

    python -P -m benchmarks.gradient_steps [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from benchmarks.peers.plain_off_policy import Items, PlainDqn, PlainSac, PlainTd3
from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec, spec_of
from headrace.rl.algorithm import make_replay_algorithm
from headrace.types import ACTION, DISCOUNT, N_STEP_RETURN, NEXT_OBSERVATION, OBSERVATION, ReplayBatch

STEPS, TARGET_EVERY = 64, 128
CASES: list[tuple[str, list[int], int]] = [
    ("dqn", [256, 256], 64),
    ("dqn", [64, 64], 64),
    ("sac", [256, 256], 256),
    ("sac", [64, 64], 256),
    ("td3", [400, 300], 256),
    ("td3", [64, 64], 256),
]
FEATURES = {"dqn": 4, "sac": 3, "td3": 3}  # CartPole's and Pendulum's


def make_batch(name: str, size: int) -> ReplayBatch:
    """``STEPS`` minibatches of random items."""
    rng, rows = np.random.default_rng(0), STEPS * size
    observations = rng.standard_normal((2, rows, FEATURES[name])).astype(np.float32)
    action = rng.integers(0, 2, rows) if name == "dqn" else rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    columns = {
        OBSERVATION: observations[0],
        NEXT_OBSERVATION: observations[1],
        ACTION: action,
        N_STEP_RETURN: rng.standard_normal(rows).astype(np.float32),
        DISCOUNT: np.full(rows, 0.99, np.float32),
    }
    return ReplayBatch(columns, np.ones(rows, np.float32), STEPS)


def make_headrace(name: str, hidden: list[int], batch: ReplayBatch) -> Callable[[], object]:
    """One update of ``STEPS`` gradient steps."""
    observation = spaces.Box(-np.inf, np.inf, (FEATURES[name],), np.float32)
    action = spaces.Discrete(2) if name == "dqn" else spaces.Box(-1, 1, (1,), np.float32)
    algorithm: dict[str, Any] = {"name": name}
    if name == "dqn":
        algorithm["target_every"] = TARGET_EVERY
    document = {
        "environment": {"id": "none"},
        "algorithm": algorithm,
        "policy": {"hidden": hidden, "activation": "relu"},
    }
    spec = EnvironmentSpec("none", spec_of(observation), spec_of(action))
    learner = make_replay_algorithm(Config.model_validate(document), spec)
    return lambda: learner.learn(batch, env_steps=0, progress=0.0)


def make_peer(name: str, hidden: list[int], batch: ReplayBatch, size: int) -> Callable[[], object]:
    """The same number of plain gradient steps."""
    peer: PlainDqn | PlainSac | PlainTd3
    if name == "dqn":
        peer = PlainDqn(FEATURES[name], 2, hidden, target_every=TARGET_EVERY)
    else:
        peer = (PlainSac if name == "sac" else PlainTd3)(FEATURES[name], 1, hidden)
    names = (OBSERVATION, ACTION, N_STEP_RETURN, DISCOUNT, NEXT_OBSERVATION)

    def run() -> None:
        for first in range(0, STEPS * size, size):
            items = Items(*(torch.as_tensor(batch.columns[column][first : first + size]) for column in names))
            peer.step(items._replace(action=items.action[:, None]) if name == "dqn" else items)

    return run


def main() -> None:
    """Measure both alternately and print absolute figures and the median of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print("gradient steps a second, medians; one torch thread")
    for name, hidden, size in CASES:
        batch = make_batch(name, size)
        sides = (make_headrace(name, hidden, batch), make_peer(name, hidden, batch, size))
        rates: list[list[float]] = [[], []]
        for _ in range(rounds + 1):
            for side, rate in zip(sides, rates, strict=True):
                start = time.perf_counter()
                side()
                rate.append(STEPS / (time.perf_counter() - start))
        ours, theirs = (rate[1:] for rate in rates)  # the first round warms up
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        print(
            f"{name} {hidden} minibatch {size}: Headrace {statistics.median(ours):,.0f}, plain torch "
            f"{statistics.median(theirs):,.0f}, ratio {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
