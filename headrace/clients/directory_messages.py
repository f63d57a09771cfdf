"""The values of :mod:`headrace.replay.members` as messages of the directory's service, and back."""

from __future__ import annotations

import math

from headrace.clients.messages import identity_to_proto
from headrace.errors import InvalidDataError
from headrace.replay.members import (
    DirectoryGlance,
    DirectoryView,
    EpisodeResult,
    ShardGrant,
    ShardIdentity,
    ShardReport,
    ShardStatus,
    ShardView,
    Tier,
)
from headrace.rpc.handshake import Handshake
from headrace.types import SamplerIdentity
from headrace.v1 import directory_pb2

MAX_ID_BYTES = 128
_TIERS: dict[int, Tier] = {directory_pb2.SHARD_TIER_HOT: "hot", directory_pb2.SHARD_TIER_COLD: "cold"}
_TIER_NAMES: dict[Tier, directory_pb2.ShardTier] = {
    "hot": directory_pb2.SHARD_TIER_HOT,
    "cold": directory_pb2.SHARD_TIER_COLD,
}


def join_to_proto(shard: ShardIdentity, handshake: Handshake) -> directory_pb2.ShardJoin:
    """The first message of a shard."""
    sampler = shard.sampler
    return directory_pb2.ShardJoin(
        handshake=handshake.to_proto(),
        shard_id=shard.shard_id,
        address=shard.address,
        tier=_TIER_NAMES[shard.tier],
        sampler=None if sampler is None else identity_to_proto(sampler),
        fragment_transitions=shard.fragment_transitions,
    )


def join_from_proto(message: directory_pb2.ShardJoin) -> ShardIdentity:
    """Inverse of :func:`join_to_proto`, without the handshake. InvalidDataError: names or tier are none."""
    if message.tier not in _TIERS:
        raise InvalidDataError(
            f"shard {message.shard_id!r}: tier {message.tier} is unknown; known: hot, cold"
        )
    sampler = None
    if message.HasField("sampler"):
        sampler = SamplerIdentity(
            check_name("sampler_id", message.sampler.sampler_id), message.sampler.incarnation
        )
    return ShardIdentity(
        shard_id=check_name("shard_id", message.shard_id),
        address=check_name("address", message.address),
        tier=_TIERS[message.tier],
        sampler=sampler,
        fragment_transitions=message.fragment_transitions,
    )


def check_name(kind: str, name: str) -> str:
    """The name, if it has 1 to 128 bytes; otherwise InvalidDataError."""
    if not name or len(name.encode()) > MAX_ID_BYTES:
        raise InvalidDataError(f"a {kind} of {len(name.encode())} bytes; 1 to {MAX_ID_BYTES} are allowed")
    return name


def report_to_proto(report: ShardReport) -> directory_pb2.ShardReport:
    """State of a shard."""
    status = report.status
    return directory_pb2.ShardReport(
        mass=status.mass,
        count=status.count,
        inserted=status.inserted,
        evicted=status.evicted,
        drawn=status.drawn,
        newest_version=status.newest_version,
        fill_ratio=status.fill_ratio,
        episodes=report.episodes,
        results=[
            directory_pb2.EpisodeResult(
                number=result.number, episode_return=result.episode_return, length=result.length
            )
            for result in report.results
        ],
        insert_allowance=report.insert_allowance,
    )


def report_from_proto(message: directory_pb2.ShardReport) -> ShardReport:
    """Inverse of :func:`report_to_proto`. InvalidDataError for a mass that is none."""
    if not math.isfinite(message.mass) or message.mass < 0:
        raise InvalidDataError(f"a shard of mass {message.mass}; it must be finite and at least 0")
    return ShardReport(
        status=_status_from_proto(message),
        episodes=message.episodes,
        results=tuple(
            EpisodeResult(result.number, result.episode_return, result.length) for result in message.results
        ),
        insert_allowance=message.insert_allowance,
    )


def _status_from_proto(message: directory_pb2.ShardReport) -> ShardStatus:
    return ShardStatus(
        mass=message.mass,
        count=message.count,
        inserted=message.inserted,
        evicted=message.evicted,
        drawn=message.drawn,
        newest_version=message.newest_version,
        fill_ratio=message.fill_ratio,
    )


def grant_to_proto(grant: ShardGrant) -> directory_pb2.JoinShardResponse:
    """Leave to insert."""
    return directory_pb2.JoinShardResponse(
        insert_allowance=grant.insert_allowance, throttled_by=grant.throttled_by, episodes=grant.episodes
    )


def grant_from_proto(message: directory_pb2.JoinShardResponse) -> ShardGrant:
    """Inverse of :func:`grant_to_proto`."""
    return ShardGrant(message.insert_allowance, message.throttled_by, message.episodes)


def view_to_proto(view: DirectoryView) -> directory_pb2.DirectoryView:
    """Who holds what, and leave to draw."""
    return directory_pb2.DirectoryView(
        shards=[
            directory_pb2.ShardView(
                shard_id=shard.shard_id,
                address=shard.address,
                tier=_TIER_NAMES[shard.tier],
                mass=shard.mass,
                count=shard.count,
            )
            for shard in view.shards
        ],
        sample_allowance=view.sample_allowance,
        outage_samples=view.outage_samples,
        throttled_by=view.throttled_by,
        samples=view.samples,
        env_steps=view.env_steps,
        episodes=view.episodes,
        recent_returns=view.recent_returns,
        recent_lengths=view.recent_lengths,
        drift=view.drift,
    )


def view_from_proto(message: directory_pb2.DirectoryView) -> DirectoryView:
    """Inverse of :func:`view_to_proto`. InvalidDataError for a tier that is none."""
    if any(shard.tier not in _TIERS for shard in message.shards):
        raise InvalidDataError("a directory view with a shard of unknown tier")
    return DirectoryView(
        shards=tuple(
            ShardView(shard.shard_id, shard.address, _TIERS[shard.tier], shard.mass, shard.count)
            for shard in message.shards
        ),
        sample_allowance=message.sample_allowance,
        outage_samples=message.outage_samples,
        throttled_by=message.throttled_by,
        samples=message.samples,
        env_steps=message.env_steps,
        episodes=message.episodes,
        recent_returns=tuple(message.recent_returns),
        recent_lengths=tuple(message.recent_lengths),
        drift=message.drift,
    )


def glance_to_proto(glance: DirectoryGlance) -> directory_pb2.GetDirectoryResponse:
    """Replay as it is now."""
    return directory_pb2.GetDirectoryResponse(
        view=view_to_proto(glance.view),
        shards={name: report_to_proto(ShardReport(status)) for name, status in glance.shards.items()},
        learners=glance.learners,
        limited_s=glance.limited_s,
    )


def glance_from_proto(message: directory_pb2.GetDirectoryResponse) -> DirectoryGlance:
    """Inverse of :func:`glance_to_proto`."""
    return DirectoryGlance(
        view=view_from_proto(message.view),
        shards={name: _status_from_proto(report) for name, report in message.shards.items()},
        learners=dict(message.learners),
        limited_s=dict(message.limited_s),
    )
