"""How fast items get from a shard of replay in one process to checked numpy arrays in another, and priorities
back, against drawing from the same shard in the same process, both alternately in one run.

    python -P -m benchmarks.replay_wire [--rounds 3] [--seconds 2] [--json FILE]

Two workloads: ``small`` (CartPole, 64 bytes an item) and ``image`` (84 x 84 x 4, two of them an item, 56 KB).
Both processes run with the malloc settings of every service. Figures, medians over the rounds:

* ``local``: draws of 256 from a shard in this process
* ``draw``: draws of 256 from a shard pool, one after the other: also the latency of each
* ``ahead``: the same with four requests under way
* ``shared``: as ``draw``, through shared memory
* ``priorities``: updates of 256 sent back, until the shard has applied them all
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.replay_shard_server import OWN, WORKLOADS, full_shard
from benchmarks.transport import Receiver, use_malloc_settings
from headrace.clients.replay_pool import ShardPool
from headrace.clients.shard import ShardClient
from headrace.replay.shard import HotShard
from headrace.types import Columns, Sample

BATCH = 256
AHEAD = 4
MAX_BYTES = 2**27
WAIT_S = 60.0
_KEYS = 2**16


@dataclass(slots=True)
class Run:
    """One way measured once."""

    items_per_s: float
    mb_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


def is_finite(sample: Sample) -> str:
    """The check of every answer: as a learner's, without its spaces."""
    columns = sample.columns.values()
    good = all(column.dtype.kind != "f" or np.isfinite(column).all() for column in columns)
    return "" if good else "not finite"


def measure(draw: Callable[[], Columns], seconds: float) -> Run:
    """Draw batches for a while, after a few that don't count."""
    for _ in range(5):
        draw()
    took: list[float] = []
    nbytes = 0
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        nbytes += sum(column.nbytes for column in draw().values())
        took.append(time.perf_counter() - began)
    total = sum(took)
    p50, p99 = np.quantile(took, (0.5, 0.99)) * 1000
    return Run(BATCH * len(took) / total, nbytes / total / 1e6, float(p50), float(p99))


def run_local(shard: HotShard, seconds: float) -> Run:
    """No wire."""

    def draw() -> Columns:
        sample = shard.sample(BATCH)
        assert sample is not None
        return sample.columns

    return measure(draw, seconds)


def run_pool(address: str, seconds: float, *, shared: bool = False) -> Run:
    """As a learner draws."""
    pool = ShardPool(
        lambda where: ShardClient(where, OWN, max_bytes=MAX_BYTES, check=is_finite, shared_memory=shared),
        exponent=0.4,
        rng=np.random.default_rng(0),
    )
    pool.set_shards([SimpleNamespace(shard_id="bench", address=address, tier="hot", mass=1.0, count=1)])

    def draw() -> Columns:
        drawn = pool.draw(BATCH, 0, WAIT_S)
        assert drawn is not None
        return drawn.columns

    result = measure(draw, seconds)
    pool.close()
    return result


def connect(address: str) -> ShardClient:
    """A client whose stream is open."""
    client = ShardClient(address, OWN, max_bytes=MAX_BYTES, check=is_finite)
    while not client.ready:
        time.sleep(0.001)
    return client


def run_ahead(address: str, seconds: float) -> Run:
    """With requests ahead of need."""
    client = connect(address)
    client.answer(client.ask(1, 0), WAIT_S)  # from now on the shard knows how large an item is
    under_way = [client.ask(BATCH, 0) for _ in range(AHEAD)]

    def draw() -> Columns:
        reply = client.answer(under_way.pop(0), WAIT_S)
        under_way.append(client.ask(BATCH, 0))
        assert reply is not None
        assert reply.sample is not None
        return reply.sample.columns

    result = measure(draw, seconds)
    client.close()
    return result


def run_priorities(address: str, seconds: float) -> Run:
    """Priorities back, half a million ahead at most."""
    client = connect(address)
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 5000, _KEYS)
    priorities = rng.random(_KEYS).astype(np.float32)
    sent = 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for begin in range(0, _KEYS, BATCH):
            client.update_priorities(keys[begin : begin + BATCH], priorities[begin : begin + BATCH])
        sent += _KEYS
        while sent - client.priorities.total() > 8 * _KEYS:
            time.sleep(0.0005)
    while client.priorities.total() < sent:
        time.sleep(0.0005)
    took = time.perf_counter() - began
    applied = client.priorities["applied"]
    client.close()
    assert applied == sent
    return Run(applied / took)


def run_rounds(rounds: int, seconds: float) -> dict[str, list[Run]]:
    """Every way in turn, ``rounds`` times."""
    results: dict[str, list[Run]] = defaultdict(list)
    for name, workload in WORKLOADS.items():
        receiver = Receiver(name, module="benchmarks.replay_shard_server")
        shard = full_shard(workload)
        for _ in range(rounds):
            results[f"{name} local"].append(run_local(shard, seconds))
            results[f"{name} draw"].append(run_pool(receiver.address, seconds))
            results[f"{name} shared"].append(run_pool(receiver.address, seconds, shared=True))
            results[f"{name} ahead"].append(run_ahead(receiver.address, seconds))
            results[f"{name} priorities"].append(run_priorities(receiver.address, seconds))
        receiver.close()
    return results


def summarize(results: dict[str, list[Run]]) -> dict[str, Any]:
    """Medians and spreads of every way."""
    return {
        name: {
            field: {"median": median(values), "min": min(values), "max": max(values)}
            for field in Run.__slots__
            if any(values := [getattr(run, field) for run in runs])
        }
        for name, runs in results.items()
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Measure the wire of replay.")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way is measured")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long one measurement lasts")
    parser.add_argument("--json", type=Path, help="write everything there")
    arguments = parser.parse_args()
    use_malloc_settings("benchmarks.replay_wire")
    summary = summarize(run_rounds(arguments.rounds, arguments.seconds))
    print(f"{'':18}{'items/s':>34}{'MB/s':>9}{'p50 ms':>9}{'p99 ms':>9}")
    for name, way in summary.items():
        rate = way["items_per_s"]
        cell = f"{rate['median']:,.0f} ({rate['min']:,.0f} to {rate['max']:,.0f})"
        fields = ("mb_per_s", "p50_ms", "p99_ms")
        others = [f"{way[field]['median']:.2f}" if field in way else "" for field in fields]
        print(f"{name:18}{cell:>34}" + "".join(f"{other:>9}" for other in others))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
