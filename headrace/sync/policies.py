"""How a configuration's ``sync`` section becomes the rules of rounds and staleness."""

from __future__ import annotations

from headrace.config.sections import Config
from headrace.sync.rounds import RoundPolicy
from headrace.sync.staleness import StalenessRule


def round_policy(config: Config) -> RoundPolicy:
    """Sync: all learners. soft_sync: all, or those within the window. async: one. All have the deadline."""
    sync = config.sync
    return RoundPolicy(
        quorum=1 if sync.mode == "async" else sync.quorum,
        window_s=sync.window_s if sync.mode == "soft_sync" else None,
        deadline_s=sync.straggler_deadline_s,
    )


def staleness_rule(config: Config) -> StalenessRule:
    """How much an old contribution counts."""
    sync = config.sync
    return StalenessRule(sync.full_weight_lag, sync.max_lag, sync.staleness_weight)
