"""What a partition holds, worked out from Redis and from the accounts of an earlier process. Pure.

Accounts are written before chunks are deleted and after they are stored. So an entry that the account has
evicted is one whose deletion was under way; one beyond what the account has received was stored just before
the process died; and what the account has and Redis has not, Redis has lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.cold_accounts import ColdCounts
from headrace.errors import ChecksumError
from headrace.types import SamplerIdentity
from services.replay.catalog import Catalog, Incarnation, Stored
from services.replay.chunks import unpack_meta


@dataclass(slots=True)
class Found:
    """A catalog with everything on standby, what Redis is to delete, and transitions that it has lost."""

    catalog: Catalog = field(default_factory=Catalog)
    garbage: list[int] = field(default_factory=list)
    redis_lost: int = 0


def recover(entries: Iterable[tuple[int, bytes]], known: Mapping[SamplerIdentity, ColdCounts]) -> Found:
    """Compare the index ``(chunk, entry)`` with the accounts."""
    found = Found()
    catalog = found.catalog
    for sampler, counts in known.items():
        catalog.incarnations[sampler] = Incarnation.restored(sampler, counts)
    for chunk, entry in sorted(entries):
        if chunk in catalog.stored:
            continue
        try:
            meta = unpack_meta(entry)
        except ChecksumError:
            found.garbage.append(chunk)
            continue
        counts = known.get(meta.sampler, ColdCounts())
        if meta.sequence <= counts.evicted_through:
            found.garbage.append(chunk)
            continue
        stored = Stored(chunk, meta, None, pending=bool(meta.pending))
        catalog.add(stored, counted=meta.sequence <= counts.received_through)
    for sampler, owner in catalog.incarnations.items():
        gap = owner.received - owner.evicted - owner.redis_lost - owner.damaged - owner.standby
        owner.redis_lost += gap
        found.redis_lost += gap
        catalog.dirty.add(sampler)
    return found
