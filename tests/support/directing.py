"""A directory of replay for tests: in this process, on a real channel, with clients of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.clients.directory import DirectoryFollower, ShardMembership
from headrace.config.sections import Config
from headrace.replay.members import ShardIdentity, ShardStatus
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import RunningServer, serve
from headrace.types import SamplerIdentity
from services.replay.directory_servicer import SERVICE, DirectoryEndpoint
from services.replay.metrics import ReplayMetrics

FRAGMENT = 16  # transitions: 2 lanes, 8 steps
DRAW = 32  # items: 2 gradient steps of 16
WAIT_S = 30.0
DIGEST = "0123456789abcdef"


def make_config(**replay: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"stop": {"updates": 10**6}},
            "environment": {"id": "CartPole-v1", "lanes": 2},
            "sampler": {"count": 1, "fragment_length": 8},
            "algorithm": {"name": "dqn", "batch_size": 16, "gradient_steps": 2},
            "replay": {"min_size_to_sample": 64, **replay},
        }
    )


def make_handshake(peer: str = "peer", run_id: str = "run-1") -> Handshake:
    return Handshake(run_id=run_id, config_digest=DIGEST, peer=peer)


def make_shard(sampler: str = "sampler-0", incarnation: int = 0) -> ShardIdentity:
    identity = SamplerIdentity(sampler, incarnation)
    return ShardIdentity(sampler, f"127.0.0.1:{7000 + incarnation}", "hot", identity, FRAGMENT)


def make_status(inserted: int, **fields: Any) -> ShardStatus:
    """A shard that still holds all that was inserted, each transition with a mass of 1."""
    return ShardStatus(**{"mass": float(inserted), "count": inserted, "inserted": inserted, **fields})


class Serving:
    """A directory that serves. ``stop`` ends it in order, ``kill`` without saving."""

    def __init__(self, run_dir: Path, config: Config, *, port: int = 0, handshake_s: float = 10.0) -> None:
        self.metrics = ReplayMetrics(CollectorRegistry())
        self.endpoint = DirectoryEndpoint(
            config,
            make_handshake("replay-0"),
            run_dir=run_dir,
            metrics=self.metrics,
            handshake_s=handshake_s,
        )
        self.server: RunningServer = serve(
            address=f"127.0.0.1:{port}",
            register=(self.endpoint.register,),
            service_names=(SERVICE,),
            max_streams=64,
        )

    @property
    def address(self) -> str:
        return self.server.address

    def stop(self) -> None:
        self.endpoint.close()
        self.server.stop(0.0)


@contextmanager
def serving(run_dir: Path, config: Config | None = None, **arguments: Any) -> Iterator[Serving]:
    directory = Serving(run_dir, config or make_config(), **arguments)
    try:
        yield directory
    finally:
        directory.stop()


@contextmanager
def member(address: str, shard: ShardIdentity | None = None, **arguments: Any) -> Iterator[ShardMembership]:
    fields: dict[str, Any] = {"rebalance_every": 1000, "rebalance_drift": 0.05, "outage_s": 30.0}
    membership = ShardMembership(
        address,
        arguments.pop("handshake", make_handshake("sampler-0")),
        shard or make_shard(),
        **fields | arguments,
    )
    membership.start()
    try:
        yield membership
    finally:
        membership.close()


@contextmanager
def follower(address: str, learner_id: str = "learner-0", **arguments: Any) -> Iterator[DirectoryFollower]:
    handshake = arguments.pop("handshake", make_handshake(learner_id))
    learner = DirectoryFollower(address, handshake, learner_id, **arguments)
    learner.start()
    try:
        yield learner
    finally:
        learner.close()
