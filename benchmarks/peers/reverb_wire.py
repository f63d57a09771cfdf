"""Reverb as a peer of the replay_wire benchmark: run by the Python of an environment that has it.

    PYTHON benchmarks/peers/reverb_wire.py --workload small|image --seconds 2

Server and client are two processes. One transition an item: observation and next observation by reference, as
its own writers do it. Prints one JSON object: insert, draw (its plain client), dataset (its TensorFlow data
set, the fastest way it has) and priorities, in items/s. Imports nothing of Headrace.
"""

# mypy: ignore-errors
# The types of another system, which is not installed where this is checked.

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

BATCH = 256
FILL = {"small": 5000, "image": 1000}
OBSERVATION = {"small": ((4,), np.float32), "image": ((84, 84, 4), np.uint8)}
TABLE = "items"


def serve(workload: str) -> None:
    """Serve a prioritized table; prints the port, ends with the parent's stdin."""
    import reverb
    import tensorflow as tf

    shape, dtype = OBSERVATION[workload]

    table = reverb.Table(
        TABLE,
        sampler=reverb.selectors.Prioritized(0.6),
        remover=reverb.selectors.Fifo(),
        max_size=100_000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature={
            "observation": tf.TensorSpec((2, *shape), dtype),
            "action": tf.TensorSpec((1,), tf.int64),
            "reward": tf.TensorSpec((1,), tf.float32),
            "terminated": tf.TensorSpec((1,), tf.bool),
        },
    )
    server = reverb.Server(tables=[table], port=None)
    print(server.port, flush=True)
    sys.stdin.read()
    server.stop()


def insert(client, workload: str, items: int, seconds: float) -> float:
    """Insert transitions until both bounds are reached; items/s."""
    shape, dtype = OBSERVATION[workload]
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 200, shape).astype(dtype) for _ in range(8)]
    began, made = time.perf_counter(), 0
    with client.trajectory_writer(num_keep_alive_refs=2) as writer:
        while made < items or time.perf_counter() - began < seconds:
            writer.append(
                {
                    "observation": frames[made % 8],
                    "action": np.int64(0),
                    "reward": np.float32(0),
                    "terminated": np.bool_(False),
                }
            )
            if made:
                history = writer.history
                writer.create_item(
                    TABLE,
                    float(rng.random()) + 0.1,
                    {
                        "observation": history["observation"][-2:],
                        "action": history["action"][-2:-1],
                        "reward": history["reward"][-2:-1],
                        "terminated": history["terminated"][-2:-1],
                    },
                )
                writer.flush(block_until_num_items=200)
            made += 1
        writer.flush()
    return made / (time.perf_counter() - began)


def draw(client, seconds: float) -> float:
    """Items/s of the plain client."""
    began, drawn = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        drawn += sum(1 for _ in client.sample(TABLE, BATCH, emit_timesteps=False))
    return drawn / (time.perf_counter() - began)


def dataset(port: int, seconds: float) -> float:
    """Items/s of its TensorFlow data set, in batches."""
    import reverb

    data = reverb.TrajectoryDataset.from_table_signature(
        f"localhost:{port}", TABLE, max_in_flight_samples_per_worker=2 * BATCH
    ).batch(BATCH)
    batches = iter(data.as_numpy_iterator())
    next(batches)
    began, drawn = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        next(batches)
        drawn += BATCH
    return drawn / (time.perf_counter() - began)


def priorities(client, seconds: float) -> float:
    """Updates/s, in calls of 256."""
    keys = [sample.info.key for sample in client.sample(TABLE, BATCH, emit_timesteps=False)]
    updates = dict.fromkeys(map(int, keys), 1.5)
    began, sent = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        client.mutate_priorities(TABLE, updates=updates)
        sent += len(updates)
    return sent / (time.perf_counter() - began)


def main() -> None:
    """Measure, or serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--workload", choices=OBSERVATION, default="small")
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.workload)
        return
    import reverb

    server = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--serve", "--workload", arguments.workload],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = int(server.stdout.readline())
        client = reverb.Client(f"localhost:{port}")
        result = {"insert": insert(client, arguments.workload, FILL[arguments.workload], arguments.seconds)}
        result["draw"] = draw(client, arguments.seconds)
        result["priorities"] = priorities(client, arguments.seconds)
        result["dataset"] = dataset(port, arguments.seconds)
    finally:
        server.stdin.close()
        server.wait(10)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
