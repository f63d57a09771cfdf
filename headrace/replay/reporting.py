"""When a new state, of a shard or of them all, is worth a message at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.replay.members import DirectoryView, ShardStatus, ShardView


@dataclass(frozen=True, slots=True)
class ReportRule:
    """``rebalance_every`` (transitions) and ``rebalance_drift`` (relative change of mass) as configured.

    ``fragment_transitions``: the largest insert.
    """

    rebalance_every: int
    rebalance_drift: float
    fragment_transitions: int

    def tells_news(self, told: ShardStatus, now: ShardStatus, left: int) -> bool:
        """Whether the directory should hear at once of ``now``. ``left``: transitions it still has leave for.

        With leave for one more fragment at most, what was inserted is told at once: it brings the next leave
        while that fragment is in the making.
        """
        inserted = now.inserted - told.inserted
        if inserted and left <= self.fragment_transitions:
            return True
        if inserted + now.drawn - told.drawn >= self.rebalance_every:
            return True
        return abs(now.mass - told.mass) > self.rebalance_drift * told.mass


def view_tells_news(sent: DirectoryView, view: DirectoryView, *, short: bool, rebalance_drift: float) -> bool:
    """Whether a learner should hear at once of ``view``. ``short``: its leave is about to run out."""
    if _places(sent.shards) != _places(view.shards) or sent.throttled_by != view.throttled_by:
        return True
    if short and view.sample_allowance > sent.sample_allowance:
        return True
    return drift(sent.shards, view.shards) > rebalance_drift


def drift(told: Sequence[ShardView], true: Sequence[ShardView]) -> float:
    """Total variation between two distributions over shards in proportion to mass, 0 to 1.

    1 if just one of them has any mass, 0 if neither has.
    """
    before, after = _weights(told), _weights(true)
    if not before or not after:
        return float(bool(before) != bool(after))
    return sum(abs(before.get(name, 0.0) - after.get(name, 0.0)) for name in {*before, *after}) / 2


def _weights(shards: Sequence[ShardView]) -> dict[str, float]:
    total = sum(shard.mass for shard in shards)
    return {shard.shard_id: shard.mass / total for shard in shards} if total > 0 else {}


def _places(shards: Sequence[ShardView]) -> list[tuple[str, str]]:
    return [(shard.shard_id, shard.address) for shard in shards]
