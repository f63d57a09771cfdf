"""The serving process of the replay benchmark: one hot shard, full, driven line by line over stdin."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from benchmarks.transport_receiver import answer_marks
from headrace.config.sections import ReplayConfig
from headrace.replay.shard import HotShard
from headrace.rpc.handshake import Handshake
from headrace.rpc.replay_shard import SERVICE, ReplayShardServicer
from headrace.rpc.server import serve
from headrace.types import Array, Fragment, FragmentId, PolicyVersion, SamplerIdentity

OWN = Handshake(run_id="bench", config_digest="0123456789abcdef")
STEPS, LANES = 64, 8


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of experience. An item carries two observations."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    fragments: int


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("small", (4,), "float32", 200),  # CartPole: 100,000 items of 64 bytes
        Workload("image", (84, 84, 4), "uint8", 15),  # Atari: 7,680 items of 56 KB
    )
}


def full_shard(workload: Workload) -> HotShard:
    """A prioritized shard with the whole workload in it."""
    settings = ReplayConfig(selector="prioritized", hot_capacity_bytes=2**29)
    shard = HotShard(settings, n_step=1, gamma=0.99, rng=np.random.default_rng(0))
    rng = np.random.default_rng(1)
    for sequence in range(workload.fragments):
        shard.insert(_fragment(workload, sequence, rng))
    shard.flush()
    return shard


def _fragment(workload: Workload, sequence: int, rng: np.random.Generator) -> Fragment:
    flags = (STEPS, LANES)

    def observations(*leading: int) -> Array:
        return rng.integers(0, 256, (*leading, *workload.shape)).astype(workload.dtype)

    columns = {
        "observation": observations(*flags),
        "action": rng.integers(0, 2, flags),
        "reward": np.ones(flags, np.float32),
        "terminated": np.zeros(flags, np.bool_),
        "truncated": np.zeros(flags, np.bool_),
        "bootstrap_observation": observations(LANES),
        "final_index": np.zeros(0, np.int32),
        "final_observation": observations(0),
        "lane_seed": np.zeros(LANES, np.int64),
        "lane_episode": np.zeros(LANES, np.int64),
        "lane_step": np.zeros(LANES, np.int32),
        "episode/return": np.zeros(0),
        "episode/length": np.zeros(0, np.int32),
    }
    transitions = STEPS * LANES
    name = FragmentId(SamplerIdentity("bench", 0), sequence)
    version = PolicyVersion(1, sequence)
    return Fragment(name, version, OWN.config_digest, columns, transitions, transitions * (sequence + 1))


def main(name: str) -> None:
    """Serve one workload until the parent hangs up."""
    servicer = ReplayShardServicer(full_shard(WORKLOADS[name]), OWN, message_bytes=2**20, slab_bytes=2**28)
    server = serve(
        address="127.0.0.1:0", handlers=[servicer.handler()], service_names=[SERVICE], max_streams=4
    )
    answer_marks(server.address)
    server.stop(0.0)


if __name__ == "__main__":
    main(sys.argv[1])
