"""A partition of the cold tier for tests: a real Redis, real channels, fragments of known content."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from streams import Stream, stream

from headrace.clients.fragments import FragmentSender
from headrace.config.sections import Config
from headrace.envs.factory import probe
from headrace.envs.spec import EnvironmentSpec
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import RunningServer, serve
from headrace.types import PRIORITY, Fragment, FragmentId, SamplerIdentity
from services.replay import cold_tier
from services.replay.cold_tier import ColdTier
from services.replay.config import ColdSettings

T, B, N_STEP, GAMMA = 8, 2, 3, 0.9
ITEMS = T * B
DIGEST = "digest"
SAMPLER = SamplerIdentity("sampler-0", 0)
WAIT_S = 30.0
COMES_BACK_S = 10.0


def make_config(**replay: Any) -> Config:
    return Config.model_validate(
        {
            "run": {"stop": {"updates": 10**6}},
            "environment": {"id": "CartPole-v1", "lanes": B},
            "sampler": {"count": 1, "fragment_length": T},
            "algorithm": {"name": "dqn", "n_step": N_STEP, "gamma": GAMMA},
            "stream": {"capacity_bytes": 2**20},
            "replay": {"cold": "required", "cold_capacity_bytes": 2**22, **replay},
        }
    )


_spec: list[EnvironmentSpec] = []


def spec() -> EnvironmentSpec:
    """Of CartPole, looked up once."""
    if not _spec:
        _spec.append(probe(make_config().environment))
    return _spec[0]


def as_stored(
    fragment: Fragment, sampler: SamplerIdentity, sequence: int, priority: float | None = 1.0
) -> Fragment:
    """A fragment as a hot tier sinks it: last observations of truncated episodes only, with priorities."""
    columns = dict(fragment.columns)
    index = columns["final_index"]
    kept = columns["truncated"].reshape(-1)[index] & ~columns["terminated"].reshape(-1)[index]
    columns["final_index"] = index[kept]
    columns["final_observation"] = columns["final_observation"][kept]
    if priority is not None:
        columns[PRIORITY] = np.full((T, B), priority, np.float32)
    return Fragment(
        FragmentId(sampler, sequence),
        fragment.policy_version,
        DIGEST,
        columns,
        fragment.num_transitions,
        (sequence + 1) * ITEMS,
    )


def made(
    count: int, *, sampler: SamplerIdentity = SAMPLER, seed: int = 0, priority: float | None = 1.0
) -> tuple[Stream, list[Fragment]]:
    """A stream of steps and its fragments, ready to be sunk."""
    steps = stream(count * T, B, seed=seed)
    fragments = steps.fragments(T)
    return steps, [as_stored(one, sampler, number, priority) for number, one in enumerate(fragments)]


class Partition:
    """A cold tier that serves. ``stop`` ends it in order; ``kill`` as a killed process does."""

    def __init__(
        self,
        url: str,
        *,
        run_dir: Path | None = None,
        config: Config | None = None,
        port: int = 0,
        session: str = "",
        **changes: Any,
    ) -> None:
        self.config = config or make_config()
        self.events: list[tuple[str, dict[str, Any]]] = []
        settings = ColdSettings.of(
            self.config, spec(), redis_url=url, run_dir=run_dir, run_id="run-1", session=session
        )
        arguments: dict[str, Any] = {
            "check": lambda _fragment: None,
            "timeout_s": 0.5,
            "rng": np.random.default_rng(0),
            "on_event": lambda kind, **fields: self.events.append((kind, fields)),
        }
        self.cold = ColdTier(settings, own(), **{**arguments, **changes})
        self.server: RunningServer = serve(
            address=f"127.0.0.1:{port}",
            handlers=self.cold.handlers(),
            service_names=cold_tier.SERVICE_NAMES,
            max_streams=16,
        )
        self.cold.start()

    @property
    def shard(self) -> Any:
        return self.cold.shard

    def wait_ready(self) -> Partition:
        assert self.cold.ready.wait(WAIT_S)
        return self

    def stop(self) -> None:
        self.cold.stop()
        self.server.stop(0.0)

    def totals(self) -> dict[str, int]:
        """The accounts, summed, and whether they balance."""
        totals = self.shard.totals()
        assert totals.balanced, totals
        return {
            name: getattr(totals, name)
            for name in ("received", "standby", "active", "evicted", "redis_lost", "damaged")
            if getattr(totals, name)
        }

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


def own(peer: str = "replay-0") -> Handshake:
    return Handshake(run_id="run-1", config_digest=DIGEST, peer=peer)


@contextmanager
def sinking(address: str, sampler: SamplerIdentity = SAMPLER, **changes: Any) -> Iterator[FragmentSender]:
    """A sampler's sender to the sink."""
    arguments: dict[str, Any] = {
        "fragment_bytes": 4096,
        "fragment_transitions": ITEMS,
        "gaps": True,
        "rng": np.random.default_rng(0),
    }
    sender = FragmentSender(address, own(str(sampler)), sampler, **{**arguments, **changes})
    sender.start()
    try:
        yield sender
    finally:
        sender.close()


def sink_all(sender: FragmentSender, fragments: list[Fragment]) -> None:
    """Hand over each as soon as there is leave for it."""
    for fragment in fragments:
        assert sender.acquire(acting_version=lambda: 0, timeout_s=WAIT_S) is not None, sender.wait_reason
        sender.send(fragment)


def settle(sender: FragmentSender, through: int) -> None:
    """Wait until everything up to ``through`` is settled."""
    wait_for(lambda: sender.settled_through >= through)


def wait_for(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Look again and again; fails after ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
