"""How fast the learner turns samples into updates, against a CleanRL-style peer, both alternately in one run.

CartPole's shapes, the same minibatch, 2 x 64 tanh towers, one torch thread. A sample counts once per epoch.

    python -P -m benchmarks.update [--minibatch 256] [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.peers.cleanrl_style import Rollout, Settings, Trainer
from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec, spec_of
from headrace.rl.algorithm import Algorithm, make_algorithm
from headrace.types import (
    ACTION,
    BEHAVIOR_LOG_PROB,
    BOOTSTRAP_VALUE,
    FINAL_INDEX,
    FINAL_VALUE,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALUE,
    Array,
    Batch,
)

EPOCHS = 4


def make_columns(num_steps: int, num_lanes: int) -> dict[str, Array]:
    """A batch that looks like an untrained CartPole policy's."""
    rng = np.random.default_rng(0)
    shape = (num_steps, num_lanes)
    terminated = rng.random(shape) < 0.04
    ends = np.flatnonzero(terminated).astype(np.int32)
    return {
        OBSERVATION: rng.standard_normal((*shape, 4)).astype(np.float32),
        ACTION: rng.integers(0, 2, shape),
        REWARD: np.ones(shape, np.float32),
        TERMINATED: terminated,
        TRUNCATED: np.zeros(shape, np.bool_),
        BEHAVIOR_LOG_PROB: np.full(shape, np.log(0.5), np.float32),
        VALUE: rng.standard_normal(shape).astype(np.float32),
        BOOTSTRAP_VALUE: np.zeros(num_lanes, np.float32),
        FINAL_INDEX: ends,
        FINAL_VALUE: np.zeros(len(ends), np.float32),
    }


def make_headrace(minibatch: int) -> Algorithm:
    environment = gym.make("CartPole-v1")
    spec = EnvironmentSpec(
        "CartPole-v1", spec_of(environment.observation_space), spec_of(environment.action_space)
    )
    algorithm: dict[str, Any] = {
        "name": "ppo",
        "epochs": EPOCHS,
        "minibatch_size": minibatch,
        "entropy_coefficient": 0.01,
    }
    return make_algorithm(
        Config.model_validate({"environment": {"id": "CartPole-v1"}, "algorithm": algorithm}), spec
    )


def as_peer_rollout(columns: dict[str, Array]) -> Rollout:
    ended = columns[TERMINATED].astype(np.float32)
    before = np.concatenate([np.zeros((1, ended.shape[1]), np.float32), ended[:-1]])
    as_tensor = torch.from_numpy
    return Rollout(
        observations=as_tensor(columns[OBSERVATION]),
        actions=as_tensor(columns[ACTION]).float(),
        log_probs=as_tensor(columns[BEHAVIOR_LOG_PROB]),
        rewards=as_tensor(columns[REWARD]),
        dones=as_tensor(before),
        values=as_tensor(columns[VALUE]),
        next_observation=as_tensor(columns[OBSERVATION][-1]),
        next_done=as_tensor(ended[-1]),
    )


def samples_per_second(update: Callable[[], object], samples: int, *, at_least_s: float = 0.5) -> float:
    """Samples trained on per second of wall-clock time, over whole updates."""
    start, updates = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < at_least_s or updates == 0:
        update()
        updates += 1
    return samples * updates / elapsed


def main() -> None:
    """Measure both alternately and print absolute figures, their ratio and its spread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minibatch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    columns = make_columns(arguments.steps, arguments.lanes)
    transitions = arguments.steps * arguments.lanes
    batch = Batch(columns, transitions)
    headrace = make_headrace(arguments.minibatch)
    settings = Settings(
        num_steps=arguments.steps,
        num_envs=arguments.lanes,
        minibatch_size=arguments.minibatch,
        update_epochs=EPOCHS,
    )
    peer, rollout = Trainer(settings, 4, 2), as_peer_rollout(columns)
    sides: dict[str, Callable[[], object]] = {
        "headrace": lambda: headrace.update(batch, progress=0.0),
        "peer": lambda: peer.update(rollout),
    }
    for update in sides.values():
        update()
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, update in sides.items():
            rates[name].append(samples_per_second(update, transitions * EPOCHS))

    print(f"{transitions} transitions, {EPOCHS} epochs, minibatches of {arguments.minibatch}, 1 torch thread")
    for name, values in rates.items():
        median = statistics.median(values)
        print(
            f"{name:>10}: {median:>10,.0f} samples/s  ({1e6 * arguments.minibatch / median:,.0f} us per "
            f"minibatch; {min(values):,.0f} to {max(values):,.0f})"
        )
    ratios = [a / b for a, b in zip(rates["headrace"], rates["peer"], strict=True)]
    print(f"     ratio: {statistics.median(ratios):.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
