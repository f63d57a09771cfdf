"""Accounts and the ledger as messages of the run service, and back."""

from __future__ import annotations

from headrace.clients.messages import identity_from_proto, identity_to_proto
from headrace.cold_accounts import ColdCounts
from headrace.flow.ledger import SamplerAccount
from headrace.types import LedgerGlance, Member, SamplerIdentity
from headrace.v1 import parameters_pb2


def account_to_proto(account: SamplerAccount) -> parameters_pb2.SamplerAccount:
    """What one incarnation has done. What is open follows from the other numbers."""
    return parameters_pb2.SamplerAccount(
        sampler=identity_to_proto(account.sampler),
        produced=account.produced,
        sealed=account.sealed,
        discarded=account.discarded,
        last_sequence=account.last_sequence,
        settled_through=account.settled_through,
        settled=account.settled,
        evicted_unsunk=account.evicted_unsunk,
        drained=account.state == "drained",
    )


def account_from_proto(message: parameters_pb2.SamplerAccount) -> SamplerAccount:
    """Inverse of :func:`account_to_proto`."""
    discarded = {reason: count for reason, count in message.discarded.items() if count}
    return SamplerAccount(
        sampler=identity_from_proto(message.sampler),
        produced=message.produced,
        discarded=discarded,
        sealed=message.sealed,
        open=message.produced - message.sealed - sum(discarded.values()),
        last_sequence=message.last_sequence,
        settled_through=message.settled_through,
        settled=message.settled,
        evicted_unsunk=message.evicted_unsunk,
        state="drained" if message.drained else "running",
    )


def cold_to_proto(sampler: SamplerIdentity, counts: ColdCounts) -> parameters_pb2.ColdAccount:
    """What one partition has done with one incarnation."""
    return parameters_pb2.ColdAccount(
        sampler=identity_to_proto(sampler),
        received=counts.received,
        standby=counts.standby,
        active=counts.active,
        evicted=counts.evicted,
        redis_lost=counts.redis_lost,
        damaged=counts.damaged,
    )


def cold_from_proto(message: parameters_pb2.ColdAccount) -> tuple[SamplerIdentity, ColdCounts]:
    """Inverse of :func:`cold_to_proto`."""
    return identity_from_proto(message.sampler), ColdCounts(
        received=message.received,
        standby=message.standby,
        active=message.active,
        evicted=message.evicted,
        redis_lost=message.redis_lost,
        damaged=message.damaged,
    )


def glance_from_proto(message: parameters_pb2.GetLedgerResponse) -> LedgerGlance:
    """The ledger's sums, and who is there."""
    return LedgerGlance(
        produced=message.produced,
        trained=message.trained,
        stored=message.stored,
        evicted=message.evicted,
        dropped=dict(message.dropped),
        in_flight=message.in_flight,
        lost=dict(message.lost),
        sampled=message.sampled,
        balanced=message.balanced,
        problems=tuple(message.problems),
        incarnations=message.incarnations,
        members=tuple(
            Member(m.id, m.name, m.incarnation, m.learner, m.silent_seconds, m.produced)
            for m in message.members
        ),
    )
