"""Puts the hot tier of a sampler together: shard, server, place in the directory, way to the cold tier."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np

from headrace.clients.directory import ShardMembership
from headrace.clients.fragments import FragmentSender
from headrace.config.checks import fragment_bytes
from headrace.config.choices import off_policy
from headrace.config.process import ProcessConfig
from headrace.envs.spec import EnvironmentSpec
from headrace.replay.members import ShardIdentity
from headrace.replay.shard import HotShard
from headrace.rpc.handshake import Handshake
from headrace.rpc.replay_shard import SERVICE, ReplayShardServicer
from headrace.rpc.server import serve
from headrace.trail import FragmentTrail
from headrace.types import SamplerIdentity
from services.sampler.acting import Acting
from services.sampler.replaying import ReplaySampler
from services.sampler.sinker import Sinker

_DRAW_SPAWN_KEY = 2**30  # draws have a stream of random numbers apart from lanes and actions
_MAX_STREAMS = 64
_SLAB_BYTES = 2**26  # shared with each learner on this node
_GRACE_S = 1.0

OnEvent = Callable[[str, str], None]


def open_replay(
    process: ProcessConfig,
    spec: EnvironmentSpec,
    handshake: Handshake,
    identity: SamplerIdentity,
    acting: Acting,
    closing: ExitStack,
    on_event: OnEvent,
) -> ReplaySampler:
    """Serve the hot tier and join the directory; ``closing`` takes it all apart again."""
    config, algorithm = process.config, off_policy(process.config)
    seeds = np.random.SeedSequence(
        config.run.seed, spawn_key=(_DRAW_SPAWN_KEY, process.index, identity.incarnation)
    )
    shard = HotShard(
        config.replay, n_step=algorithm.n_step, gamma=algorithm.gamma, rng=np.random.default_rng(seeds)
    )
    servicer = ReplayShardServicer(
        shard,
        handshake,
        message_bytes=config.stream.message_bytes,
        slab_bytes=_SLAB_BYTES if config.stream.codec == "shared_memory" else 0,
    )
    server = serve(
        address=process.listen,
        handlers=[servicer.handler()],
        service_names=[SERVICE],
        max_streams=_MAX_STREAMS,
        setting="listen",
    )
    closing.callback(server.stop, _GRACE_S)
    closing.callback(servicer.drain)
    transitions = config.environment.lanes * config.sampler.fragment_length
    membership = ShardMembership(
        process.replay[0],
        handshake,
        ShardIdentity(process.name, process.reached_at(server.address), "hot", identity, transitions),
        rebalance_every=config.replay.rebalance_every,
        rebalance_drift=config.replay.rebalance_drift,
        outage_s=config.replay.outage_s,
        on_event=on_event,
    )
    membership.start()
    closing.callback(membership.close)
    sinker = None
    if process.sink:
        sender = FragmentSender(
            process.sink,
            handshake,
            identity,
            fragment_bytes=fragment_bytes(config, spec),
            fragment_transitions=transitions,
            message_bytes=config.stream.message_bytes,
            gaps=True,
            clock=time.monotonic,
            on_event=on_event,
        )
        sinker = Sinker(shard, sender)
        sinker.start()
        closing.callback(sinker.close)
    trail = FragmentTrail(process.run_dir, writer=process.name)
    closing.callback(trail.close)
    return ReplaySampler(config, acting, shard, membership, sinker, trail)
