"""Metrics of replay."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.metrics import CounterMirror, ServiceMetrics


class ReplayMetrics(ServiceMetrics):
    """All collectors of a replay process. Those of the directory stay at 0 in all but the first one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.mass_drift = Gauge(
            "headrace_replay_mass_drift",
            "Total variation between the shards' weights as learners know them and as they are, 0 to 1.",
            registry=registry,
        )
        self.members = Gauge(
            "headrace_replay_members", "Shards in the directory, by tier.", ["tier"], registry=registry
        )
        self.limited_seconds = Counter(
            "headrace_replay_limited_seconds",
            "Seconds in which the limiter held back at least one sampler (insert) or learner (sample).",
            ["reason"],
            registry=registry,
        )
        self._limited = CounterMirror(self.limited_seconds)

    def observe_directory(
        self, *, drift: float, members: Mapping[str, int], limited_s: Mapping[str, float]
    ) -> None:
        """Bring what the directory counts up to date; ``limited_s`` is cumulative."""
        self.mass_drift.set(drift)
        for tier, count in members.items():
            self.members.labels(tier=tier).set(count)
        self._limited.follow(limited_s)
