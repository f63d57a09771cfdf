"""Metrics of replay."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.cold_accounts import ColdCounts
from headrace.metrics import CounterMirror, ServiceMetrics, begin_at_zero
from headrace.replay.shard import ShardStats
from services.replay.sink import SinkCounts
from services.replay.store import REASONS

LIMITED = ("insert", "sample")
GONE = ("evicted", "redis_lost", "damaged")
_COLD = "cold"


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
        self.fill_ratio = Gauge(
            "headrace_replay_fill_ratio", "Bytes stored over capacity.", ["tier"], registry=registry
        )
        self.samples = Counter(
            "headrace_replay_samples", "Items drawn from this process, by tier.", ["tier"], registry=registry
        )
        self.stored = Gauge(
            "headrace_replay_stored_transitions",
            "Transitions stored here: active (in no other place) or standby (their hot tier has them, too).",
            ["state"],
            registry=registry,
        )
        self.dropped = Counter(
            "headrace_replay_dropped",
            "Transitions that left the cold tier: evicted, redis_lost, damaged, or why the sink refused it.",
            ["reason"],
            registry=registry,
        )
        self.redis_degraded = Gauge(
            "headrace_replay_redis_degraded",
            "1 while Redis can't be used for this reason. While all are 0 the cold tier works.",
            ["reason"],
            registry=registry,
        )
        self.redis_seconds = Counter(
            "headrace_replay_redis_seconds",
            "Seconds spent in calls of Redis, by kind of call.",
            ["reason"],
            registry=registry,
        )
        self.sink_bytes = Counter(
            "headrace_replay_sink_bytes", "Compressed bytes written to Redis.", registry=registry
        )
        self.sink_duplicates = Counter(
            "headrace_replay_sink_duplicates",
            "Fragments that came again after a reconnect and were recognised.",
            registry=registry,
        )
        self.sink_streams = Gauge(
            "headrace_replay_sink_streams", "Samplers connected to the sink.", registry=registry
        )
        begin_at_zero(self.limited_seconds, "reason", LIMITED)
        begin_at_zero(self.dropped, "reason", GONE)
        self._limited = CounterMirror(self.limited_seconds)
        self._dropped = CounterMirror(self.dropped)
        self._redis_seconds = CounterMirror(self.redis_seconds)
        self._seen = SinkCounts()
        self._drawn = 0

    def observe_directory(
        self, *, drift: float, members: Mapping[str, int], limited_s: Mapping[str, float]
    ) -> None:
        """Bring what the directory counts up to date; ``limited_s`` is cumulative."""
        self.mass_drift.set(drift)
        for tier, count in members.items():
            self.members.labels(tier=tier).set(count)
        self._limited.follow(limited_s)

    def observe_cold(
        self,
        *,
        stats: ShardStats,
        totals: ColdCounts,
        sink: SinkCounts,
        redis_reason: str,
        redis_seconds: Mapping[str, float],
    ) -> None:
        """Bring what the cold tier counts up to date."""
        self.fill_ratio.labels(tier=_COLD).set(stats.fill_ratio)
        self.samples.labels(tier=_COLD).inc(max(0, stats.drawn - self._drawn))
        self._drawn = stats.drawn
        self.stored.labels(state="active").set(totals.active)
        self.stored.labels(state="standby").set(totals.standby)
        gone = {"evicted": totals.evicted, "redis_lost": totals.redis_lost, "damaged": totals.damaged}
        self._dropped.follow({**gone, **sink.dropped})
        for reason in REASONS:
            self.redis_degraded.labels(reason=reason).set(reason == redis_reason)
        self._redis_seconds.follow(redis_seconds)
        self.sink_bytes.inc(sink.nbytes - self._seen.nbytes)
        self.sink_duplicates.inc(sink.duplicates - self._seen.duplicates)
        self.sink_streams.set(sink.streams)
        self._seen = sink
