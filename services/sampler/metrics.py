"""Metrics of the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.envs.backend import FAULTS
from headrace.metrics import CounterMirror, ServiceMetrics, begin_at_zero
from headrace.rollout import RolloutCounts
from headrace.types import EPISODE_RETURN, Fragment

if TYPE_CHECKING:
    from headrace.replay.shard import ShardStats  # at run time it would bring numba along

THROTTLED_BY = ("credit", "permit", "parameters", "connection", "samples_per_insert")
"""What a sampler waits for before it steps; the last one with replay only."""

STEP_BUCKETS_S = (25e-6, 50e-6, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 10.0)


class SamplerMetrics(ServiceMetrics):
    """All collectors of a sampler process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.env_steps = Counter(
            "headrace_sampler_env_steps", "Environment steps taken, all lanes together.", registry=registry
        )
        self.env_step_seconds = Histogram(
            "headrace_sampler_env_step_seconds",
            "Seconds of one step of all lanes together, without the policy.",
            buckets=STEP_BUCKETS_S,
            registry=registry,
        )
        self.throttled_seconds = Counter(
            "headrace_sampler_throttled_seconds",
            "Seconds in which the sampler could not step, by what it waited for "
            "(credit, permit, parameters, connection; with replay: samples_per_insert).",
            ["reason"],
            registry=registry,
        )
        self.acting_policy_lag = Gauge(
            "headrace_sampler_acting_policy_lag",
            "Versions between the parameters that acted and the newest known, in updates.",
            registry=registry,
        )
        self.policy_version = Gauge(
            "headrace_sampler_policy_version", "Number of the version that acts.", registry=registry
        )
        self.fragments = Counter("headrace_sampler_fragments", "Fragments sealed.", registry=registry)
        self.quota_steps = Gauge(
            "headrace_sampler_quota_steps",
            "Steps per lane that the learner asks for in a fragment; 0: sampler.fragment_length.",
            registry=registry,
        )
        self.episodes = Counter("headrace_sampler_episodes", "Episodes finished.", registry=registry)
        self.episode_return = Gauge(
            "headrace_sampler_episode_return",
            "Mean return of the episodes that ended in the last fragment that had any.",
            registry=registry,
        )
        self.unsettled_bytes = Gauge(
            "headrace_sampler_unsettled_bytes",
            "Bytes of fragments kept until the learner has settled them.",
            registry=registry,
        )
        self.environment_restarts = Counter(
            "headrace_sampler_environment_restarts",
            "Environments rebuilt after a fault, by reason.",
            ["reason"],
            registry=registry,
        )
        self.hot_tier_fill_ratio = Gauge(
            "headrace_sampler_hot_tier_fill_ratio",
            "Chunks of experience held for replay over the room for them.",
            registry=registry,
        )
        self.hot_tier_bytes = Gauge(
            "headrace_sampler_hot_tier_bytes", "Bytes of the hot tier and its index.", registry=registry
        )
        self.replay_samples = Counter(
            "headrace_replay_samples",
            "Items drawn from replay, by the tier that held them.",
            ["tier"],
            registry=registry,
        )
        begin_at_zero(self.throttled_seconds, "reason", THROTTLED_BY)
        begin_at_zero(self.environment_restarts, "reason", FAULTS)
        begin_at_zero(self.transitions, "state", ("produced", "sealed"), reason="")
        self._throttled = CounterMirror(self.throttled_seconds)
        self._restarts = CounterMirror(self.environment_restarts)
        self._discarded = CounterMirror(self.transitions, state="discarded")
        self._sealed = 0
        self._drawn = 0
        self._produced = 0

    def observe_waits(self, wait_seconds: Mapping[str, float], unsettled_bytes: int) -> None:
        """Bring the wait timers (cumulative seconds by reason) and the resend buffer up to date."""
        self._throttled.follow(wait_seconds)
        self.unsettled_bytes.set(unsettled_bytes)

    def observe_hot_tier(self, stats: ShardStats) -> None:
        """Bring what the hot tier counts up to date."""
        self.hot_tier_fill_ratio.set(stats.fill_ratio)
        self.hot_tier_bytes.set(stats.nbytes)
        self.replay_samples.labels(tier="hot").inc(stats.drawn - self._drawn)
        self._drawn = stats.drawn

    def observe_fragment(self, fragment: Fragment, policy_lag: int) -> None:
        """Count one sealed fragment."""
        self.fragments.inc()
        self.acting_policy_lag.set(policy_lag)
        self.policy_version.set(fragment.policy_version.number)
        returns = fragment.columns[EPISODE_RETURN]
        if returns.size:
            self.episodes.inc(returns.size)
            self.episode_return.set(float(returns.mean()))

    def observe_counts(self, counts: RolloutCounts, restarts: Mapping[str, int]) -> None:
        """Bring the ledger's counters up to date."""
        self.env_steps.inc(counts.produced - self._produced)
        self.transitions.labels(state="produced", reason="").inc(counts.produced - self._produced)
        self.transitions.labels(state="sealed", reason="").inc(counts.sealed - self._sealed)
        self._produced, self._sealed = counts.produced, counts.sealed
        self._discarded.follow(counts.discarded)
        self._restarts.follow(restarts)


class EvaluatorMetrics(ServiceMetrics):
    """All collectors of an evaluator process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.evaluations = Counter("headrace_evaluator_evaluations", "Evaluations done.", registry=registry)
        self.episode_return = Gauge(
            "headrace_evaluator_return", "Mean return of the last evaluation.", registry=registry
        )
        self.policy_version = Gauge(
            "headrace_evaluator_policy_version", "Number of the version last evaluated.", registry=registry
        )
        self.seconds = Histogram(
            "headrace_evaluator_seconds",
            "Seconds one evaluation took.",
            buckets=(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0),
            registry=registry,
        )
