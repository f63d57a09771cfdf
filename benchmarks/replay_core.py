"""How fast a full buffer of small transitions adds, draws and takes new priorities, in one process.

    python -P -m benchmarks.replay_core --peers-python PATH [--items 1000000] [--call 256] [--rounds 3]

``--peers-python`` is the Python of a virtual environment that holds cpprb, torchrl or stable-baselines3;
without it Headrace is measured alone. Every measurement is a fresh process, the systems take turns.

Headrace's side is its hot shard: fragments come in; what is drawn comes with its n-step return, discount and
observation to bootstrap from, read from the rows, and with importance weights; all of it under the shard's
lock. ``headrace3`` is the same with 3 steps, ``index`` are the trees alone, without experience.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.peers.protocol import NOT_INSTALLED
from benchmarks.peers.replay_work import (
    IMPORTANCE_EXPONENT,
    PRIORITY_EXPONENT,
    Array,
    Buffer,
    ReplayWork,
    make_columns,
    serve,
)
from headrace.config.sections import ReplayConfig
from headrace.replay.items import ItemIndex
from headrace.replay.shard import HotShard, bytes_per_chunk
from headrace.replay.weights import importance_weights
from headrace.types import (
    ACTION,
    BOOTSTRAP_OBSERVATION,
    EPISODE_LENGTH,
    EPISODE_RETURN,
    FINAL_INDEX,
    FINAL_OBSERVATION,
    LANE_EPISODE,
    LANE_SEED,
    LANE_STEP,
    NEXT_OBSERVATION,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Fragment,
    FragmentId,
    PolicyVersion,
    SamplerIdentity,
)

PEERS = ("cpprb", "torchrl", "sb3")
LANES = 8
OPERATIONS = ("add", "sample", "update")
_TIMEOUT_S = 600.0


class Shard:
    """A hot shard that holds ``items`` transitions and adds fragments of ``call``."""

    def __init__(self, work: ReplayWork, n_step: int = 1) -> None:
        self._work, self._rng = work, np.random.default_rng(work.seed)
        self._columns, self._sequence = fragment_columns(work), 0
        replay = ReplayConfig(selector="prioritized", priority_exponent=PRIORITY_EXPONENT)
        capacity = bytes_per_chunk(replay, self._fragment()) * -(-work.items // work.call)
        replay = replay.model_copy(update={"hot_capacity_bytes": capacity})
        self._shard = HotShard(replay, n_step=n_step, gamma=0.99, rng=self._rng)
        self._keys = np.empty(0, np.int64)

    def _fragment(self) -> Fragment:
        sequence = self._sequence
        self._sequence += 1
        return Fragment(
            FragmentId(SamplerIdentity("sampler-0", 0), sequence),
            PolicyVersion(1, 1),
            "digest",
            self._columns,
            num_transitions=self._work.call,
            produced_through=(sequence + 1) * self._work.call,
        )

    def add(self) -> None:
        """Insert a fragment."""
        self._shard.insert(self._fragment())

    def sample(self) -> None:
        """Draw, with importance weights."""
        drawn = self._shard.sample(self._work.call)
        assert drawn is not None
        importance_weights(drawn.probabilities, self._work.items, IMPORTANCE_EXPONENT)
        self._keys = drawn.keys

    def update(self) -> None:
        """New priorities for what was drawn."""
        self._shard.update_priorities(self._keys, self._rng.random(len(self._keys)))


class Index:
    """The index of such a shard alone: trees of ``items`` leaves, without experience."""

    def __init__(self, work: ReplayWork) -> None:
        self._work, self._rng, self._chunk = work, np.random.default_rng(work.seed), 0
        self._index = ItemIndex(
            max_chunks=-(-work.items // work.call),
            items_per_chunk=work.call,
            rng=self._rng,
            selector="prioritized",
            priority_exponent=PRIORITY_EXPONENT,
        )
        self._drawable = np.ones(work.call, np.bool_)
        self._keys = np.empty(0, np.int64)

    def add(self) -> None:
        """Replace the oldest chunk."""
        self._index.remove(self._chunk - self._index.max_chunks)
        self._index.add(self._chunk, self._drawable, None, version=1)
        self._chunk += 1

    def sample(self) -> None:
        """Draw keys and their probabilities."""
        self._keys = self._index.draw(self._work.call).keys

    def update(self) -> None:
        """New priorities for what was drawn."""
        self._index.update(self._keys, self._rng.random(len(self._keys)))


def fragment_columns(work: ReplayWork) -> dict[str, Array]:
    """A fragment of ``call`` transitions, 8 lanes if they divide it."""
    columns = make_columns(work)
    lanes = math.gcd(LANES, work.call)
    steps = {
        name: columns[name].reshape(-1, lanes, *columns[name].shape[1:])
        for name in (OBSERVATION, ACTION, REWARD, TERMINATED)
    }
    ends = np.flatnonzero(columns[TERMINATED])
    last = columns[NEXT_OBSERVATION]
    return {
        **steps,
        TRUNCATED: np.zeros_like(steps[TERMINATED]),
        BOOTSTRAP_OBSERVATION: last[-lanes:],
        FINAL_INDEX: ends.astype(np.int32),
        FINAL_OBSERVATION: last[ends],
        EPISODE_RETURN: np.zeros(len(ends)),
        EPISODE_LENGTH: np.zeros(len(ends), np.int32),
        LANE_SEED: np.zeros(lanes, np.int64),
        LANE_EPISODE: np.zeros(lanes, np.int64),
        LANE_STEP: np.zeros(lanes, np.int32),
    }


OWN: dict[str, Callable[[ReplayWork], Buffer]] = {
    "headrace": Shard,
    "headrace3": lambda work: Shard(work, n_step=3),
    "index": Index,
}


def measure(system: str, work: ReplayWork, pythons: Sequence[Path]) -> dict[str, float] | str:
    """Microseconds a call by operation, or why there are none."""
    module = "benchmarks.replay_core" if system in OWN else "benchmarks.peers.replay_buffers"
    said = "there is no --peers-python"
    root = Path(__file__).parent.parent
    for python in [Path(sys.executable)] if system in OWN else pythons:
        done = subprocess.run(
            [str(python), "-P", "-m", module, system, "--work", work.to_json()],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        said = done.stdout.strip().rpartition("\n")[2]
        if done.returncode == 0:
            times: dict[str, float] = json.loads(said)
            return times
        if done.returncode != NOT_INSTALLED:
            return f"failed with {done.returncode}: {done.stderr[-2000:]}"
    return said


def print_summary(results: dict[str, list[dict[str, float]]], missing: dict[str, str], call: int) -> None:
    """For people: medians over the rounds and their spread, and how much longer the fastest peer takes."""
    print(f"us per call of {call:<8}" + "".join(f"{name:>26}" for name in OPERATIONS))
    for system, rounds in results.items():
        line = f"{system:24}"
        for name in OPERATIONS:
            values = [times[name] for times in rounds if name in times]
            cell = f"{median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})" if values else "-"
            line += f"{cell:>26}"
        print(line)
    for system, reason in missing.items():
        print(f"{system:24}not measured: {reason}")
    ratios = [
        (
            name,
            [
                min(peer[turn][name] for peer in peers if name in peer[turn])
                / results["headrace"][turn][name]
                for turn in range(len(results["headrace"]))
            ],
        )
        for name in OPERATIONS
        if (peers := [results[peer] for peer in PEERS if peer in results])
    ]
    for name, values in ratios:
        print(
            f"fastest peer / headrace, {name:8}{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        )


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Measure the core of replay against other buffers.")
    parser.add_argument("--peers-python", type=Path, action="append", default=[], help="may be repeated")
    parser.add_argument("--items", type=int, default=1_000_000, help="transitions held")
    parser.add_argument("--call", type=int, default=256, help="transitions a call")
    parser.add_argument("--calls", type=int, default=1000, help="calls timed of each operation")
    parser.add_argument("--rounds", type=int, default=3, help="how often each system is measured")
    parser.add_argument("--json", type=Path, help="write everything there")
    arguments = parser.parse_args()
    work = ReplayWork(items=arguments.items, call=arguments.call, calls=arguments.calls)
    pythons = [python.absolute() for python in arguments.peers_python]
    results: dict[str, list[dict[str, float]]] = {}
    missing: dict[str, str] = {}
    for _ in range(arguments.rounds):
        for system in (*OWN, *PEERS):
            if system in missing:
                continue
            times = measure(system, work, pythons)
            if isinstance(times, str):
                missing[system] = times
                results.pop(system, None)
            else:
                results.setdefault(system, []).append(times)
    print_summary(results, missing, work.call)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rounds": results, "missing": missing}, indent=1))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in OWN:
        serve(OWN, prioritized=frozenset(OWN))
    else:
        main()
