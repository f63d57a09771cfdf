"""How fast the cold tier takes in and gives out, beside the client library it is built on.

    python -P -m benchmarks.cold [--shapes 32x8 128x32] [--rounds 5] [--seconds 3] [--megabytes 64] [--json F]

A Redis of the benchmark's own (append-only file on, as in a run), a partition in this process, a sampler's
sender in another one; fragments of CartPole, steps x lanes, as a hot tier sinks them. ``sink`` counts
bytes of arrays from handing them over until they are settled. ``set`` is redis-py (hiredis) that writes the
same bytes with pipelined SET, 256 a round trip, in the same round, to the same server. ``sample`` draws 256
items at a time, each from another chunk, without the cache of decoded chunks.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import redis

from benchmarks.parameter_processes import start
from headrace.clients.fragments import FragmentSender
from headrace.codec import encode_fragment
from headrace.config.digest import config_digest
from headrace.config.sections import Config
from headrace.envs.factory import probe
from headrace.envs.spec import EnvironmentSpec
from headrace.local.ports import pick_port
from headrace.local.redis import LocalRedis, find_redis
from headrace.replay.shard import HotShard
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import serve
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
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Array,
    Fragment,
    FragmentId,
    PolicyVersion,
    SamplerIdentity,
)
from services.replay import cold_tier
from services.replay.cold_tier import ColdTier
from services.replay.config import ColdSettings

SAMPLER = SamplerIdentity("sampler-0", 0)
DRAW = 256
SET_CHUNKS = 256
WAIT_S = 60.0
MB = 1e6
UNITS = {"sink_mb_s": "MB/s", "set_mb_s": "MB/s", "ratio": "", "sample_items_s": "items/s"}


@dataclass(frozen=True, slots=True)
class Round:
    """One round: MB/s of arrays, their ratio, and items drawn per second."""

    shape: str
    sink_mb_s: float
    set_mb_s: float
    ratio: float
    sample_items_s: float


def make_config(shape: str) -> Config:
    """The run that the fragments belong to; ``shape``: "TxB"."""
    steps, lanes = map(int, shape.split("x"))
    return Config.model_validate(
        {
            "run": {"stop": {"updates": 1}},
            "environment": {"id": "CartPole-v1", "lanes": lanes},
            "sampler": {"fragment_length": steps},
            "algorithm": {"name": "dqn", "n_step": 3},
            "replay": {"cold_capacity_bytes": 256 * 2**20},
        }
    )


def make_fragments(count: int, config: Config) -> list[Fragment]:
    """Fragments like those of CartPole: slowly changing states, rewards of 1, an end every 20 steps or so."""
    rng = np.random.default_rng(0)
    steps, lanes = config.sampler.fragment_length, config.environment.lanes
    hot = HotShard(config.replay, n_step=3, gamma=0.99, rng=rng)
    for sequence in range(count):
        walk = (0.3 * np.tanh(np.cumsum(rng.normal(0, 0.1, (steps, lanes, 4)), axis=0))).astype(np.float32)
        terminated = rng.random((steps, lanes)) < 0.05
        ended = np.flatnonzero(terminated).astype(np.int32)
        columns: dict[str, Array] = {
            OBSERVATION: walk,
            ACTION: rng.integers(0, 2, (steps, lanes)),
            REWARD: np.ones((steps, lanes), np.float32),
            TERMINATED: terminated,
            TRUNCATED: np.zeros((steps, lanes), np.bool_),
            BOOTSTRAP_OBSERVATION: walk[-1],
            FINAL_INDEX: ended,
            FINAL_OBSERVATION: walk.reshape(-1, 4)[ended],
            LANE_SEED: np.zeros(lanes, np.int64),
            LANE_EPISODE: np.zeros(lanes, np.int64),
            LANE_STEP: np.zeros(lanes, np.int32),
            EPISODE_RETURN: np.zeros(len(ended)),
            EPISODE_LENGTH: np.zeros(len(ended), np.int32),
        }
        identity = FragmentId(SAMPLER, sequence)
        produced = steps * lanes * (sequence + 1)
        hot.insert(
            Fragment(identity, PolicyVersion(1, 1), config_digest(config), columns, steps * lanes, produced),
            rng.random((steps, lanes), np.float32),
        )
    return [hot.fragment(chunk) for chunk in range(count)]


def handshake_of(config: Config, spec: EnvironmentSpec) -> Handshake:
    """Both ends' handshake."""
    return Handshake("benchmark", config_digest(config), spec.to_json(), "benchmark")


def send(address: str, shape: str) -> None:
    """Body of the sending process: for each line ``first count`` it sinks and releases so many fragments."""
    config = make_config(shape)
    spec = probe(config.environment)
    fragments = make_fragments(64, config)
    sender = FragmentSender(
        address,
        handshake_of(config, spec),
        SAMPLER,
        fragment_bytes=fragments[0].nbytes,
        fragment_transitions=fragments[0].num_transitions,
        gaps=True,
    )
    sender.start()
    print("ready", flush=True)
    for line in sys.stdin:
        first, count = map(int, line.split())
        for sequence in range(first, first + count):
            fragment = fragments[sequence % len(fragments)]
            while sender.acquire(acting_version=lambda: 0, timeout_s=WAIT_S) is None:
                pass
            sender.send(replace(fragment, id=FragmentId(SAMPLER, sequence)))
        sender.release(first + count - 1)
        while sender.settled_through < first + count - 1:
            time.sleep(0.001)
        print("settled", flush=True)


def tell(process: subprocess.Popen[str], first: int, count: int) -> float:
    """Let the sender sink ``count`` fragments; seconds until they were settled."""
    assert process.stdin is not None
    assert process.stdout is not None
    began = time.perf_counter()
    process.stdin.write(f"{first} {count}\n")
    process.stdin.flush()
    if process.stdout.readline().strip() != "settled":
        raise RuntimeError("the sender has ended")
    return time.perf_counter() - began


def plain_set(client: redis.Redis, values: list[bytes], count: int) -> float:
    """Seconds that redis-py takes to SET ``count`` values, pipelined."""
    began = time.perf_counter()
    for begin in range(0, count, SET_CHUNKS):
        pipe = client.pipeline(transaction=False)
        for number in range(begin, min(begin + SET_CHUNKS, count)):
            pipe.set(f"plain:{number % 4096}", values[number % len(values)])
        pipe.execute()
    return time.perf_counter() - began


def sample(tier: ColdTier, seconds: float) -> float:
    """Items per second."""
    tier.shard.sample(DRAW)
    drawn, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        found = tier.shard.sample(DRAW)
        assert found is not None
        drawn += found.size
    return drawn / (time.perf_counter() - began)


def measure(arguments: argparse.Namespace, shape: str, folder: Path) -> list[Round]:
    """All rounds, each with both sides."""
    source = find_redis()
    if source is None or not source.program:
        raise SystemExit("no Redis server to start")
    port = pick_port("127.0.0.1", random.Random(), set())
    server = LocalRedis(folder, program=source.program, port=port, capacity_bytes=2**30)
    server.start()
    server.wait_ready(WAIT_S)
    config = make_config(shape)
    spec = probe(config.environment)
    settings = ColdSettings.of(config, spec, redis_url=server.url, run_dir=folder, run_id="benchmark")
    tier = ColdTier(settings, handshake_of(config, spec), cache_bytes=0)
    serving = serve(
        address="127.0.0.1:0", handlers=tier.handlers(), service_names=cold_tier.SERVICE_NAMES, max_streams=8
    )
    tier.start()
    tier.ready.wait(WAIT_S)
    sender = start("benchmarks.cold", "--send", serving.address, "--shapes", shape)
    assert sender.stdout is not None
    sender.stdout.readline()
    fragments = make_fragments(64, config)
    raw = [b"".join(encode_fragment(fragment, "protobuf", 2**30)) for fragment in fragments]
    rounds = []
    try:
        with redis.Redis.from_url(server.url, protocol=2) as client:
            chunks = max(1, int(arguments.megabytes * MB / fragments[0].nbytes))
            tell(sender, 0, chunks)
            first = chunks
            for _ in range(arguments.rounds):
                nbytes = chunks * fragments[0].nbytes
                set_s = plain_set(client, raw, chunks)
                sink_s = tell(sender, first, chunks)
                first += chunks
                if tier.shard.totals().received != first * fragments[0].num_transitions:
                    raise RuntimeError(f"not everything was stored: {tier.sink.counts()}")
                rounds.append(
                    Round(
                        shape=shape,
                        sink_mb_s=nbytes / sink_s / MB,
                        set_mb_s=nbytes / set_s / MB,
                        ratio=set_s / sink_s,
                        sample_items_s=sample(tier, arguments.seconds),
                    )
                )
    finally:
        sender.terminate()
        sender.wait(WAIT_S)
        serving.stop(0.0)
        tier.stop()
        server.stop()
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of drawing in each round")
    parser.add_argument("--megabytes", type=float, default=64.0, help="of arrays sunk in each round")
    parser.add_argument("--shapes", nargs="+", default=["32x8", "128x32"], help="steps x lanes of a fragment")
    parser.add_argument("--json", type=Path, help="keep every round")
    parser.add_argument("--send", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send:
        send(arguments.send, arguments.shapes[0])
        return
    rounds: list[Round] = []
    for shape in arguments.shapes:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(arguments, shape, Path(folder))
        rounds += found
        for name, unit in UNITS.items():
            values = sorted(getattr(one, name) for one in found)
            middle, least, most = statistics.median(values), values[0], values[-1]
            print(f"{shape:8s} {name:16s} {middle:10.2f} {unit:8s} {least:.2f} to {most:.2f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in rounds], indent=1), "utf-8")


if __name__ == "__main__":
    main()
