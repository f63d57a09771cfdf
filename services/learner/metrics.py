"""Metrics of the learner."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.metrics import CounterMirror, ServiceMetrics, begin_at_zero
from headrace.sync.staleness import OUTCOMES
from headrace.types import TrainingReport

WAITS_FOR = (
    "samplers", "straggler", "parameters", "assembly",
    "empty", "samples_per_insert", "min_size_to_sample", "sample", "credit", "connection",
    "round",
)  # fmt: skip
"""What a learner waits for: with fragments, with replay, and with other learners."""

LAG_BUCKETS_UPDATES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
AGE_BUCKETS_UPDATES = (0, 1, 4, 16, 64, 256, 1024, 4096, 16384, 65536)
SECONDS_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0)


class LearnerMetrics(ServiceMetrics):
    """All collectors of a learner process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self.updates = Counter(
            "headrace_learner_updates",
            "Exchanges whose work is part of a version: one update each, or sync.local_steps.",
            registry=registry,
        )
        self.wait_seconds = Counter(
            "headrace_learner_wait_seconds",
            "Seconds in which the learner could not compute, by what it waited for (samplers, straggler, "
            "parameters, assembly; with replay: empty, samples_per_insert, min_size_to_sample, sample, "
            "credit, connection; with other learners: round).",
            ["reason"],
            registry=registry,
        )
        self.input_fill_ratio = Gauge(
            "headrace_learner_input_fill_ratio", "Bytes buffered over capacity.", registry=registry
        )
        self.trained_policy_lag = Histogram(
            "headrace_learner_trained_policy_lag",
            "Policy lag of each trained fragment, in updates.",
            buckets=LAG_BUCKETS_UPDATES,
            registry=registry,
        )
        self.non_finite = Counter(
            "headrace_learner_non_finite",
            "Gradient steps skipped because the loss or a gradient was not finite.",
            registry=registry,
        )
        self.samples = Counter(
            "headrace_learner_samples", "Transitions times epochs learned from.", registry=registry
        )
        self.update_seconds = Histogram(
            "headrace_learner_update_seconds",
            "Seconds the algorithm took for one update.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.publish_seconds = Histogram(
            "headrace_learner_publish_seconds",
            "Seconds from handing a version to the paramserver until it was issued.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.episode_return = Gauge(
            "headrace_learner_episode_return",
            "Mean return of the last 100 training episodes.",
            registry=registry,
        )
        self.streams = Gauge("headrace_learner_streams", "Samplers connected.", registry=registry)
        self.duplicates = Counter(
            "headrace_learner_duplicate_fragments",
            "Fragments that came again after a reconnect and were recognised.",
            registry=registry,
        )
        self.sample_age = Histogram(
            "headrace_replay_sample_age_versions",
            "Policy lag of items drawn from replay, in updates; 64 of each update.",
            buckets=AGE_BUCKETS_UPDATES,
            registry=registry,
        )
        self.contributions = Counter(
            "headrace_learner_contributions",
            "Contributions to rounds, by what became of them (as in headrace_paramserver_gradients).",
            ["outcome"],
            registry=registry,
        )
        begin_at_zero(self.wait_seconds, "reason", WAITS_FOR)
        begin_at_zero(self.contributions, "outcome", OUTCOMES)
        begin_at_zero(self.transitions, "state", ("trained",), reason="")
        begin_at_zero(self.transitions, "reason", ("stale", "missing"), state="dropped")
        self._waits = CounterMirror(self.wait_seconds)
        self._dropped = CounterMirror(self.transitions, state="dropped")
        self._duplicates = 0

    def observe_intake(
        self,
        *,
        wait_seconds: Mapping[str, float],
        fill_ratio: float,
        dropped: Mapping[str, int],
        streams: int,
        duplicates: int,
    ) -> None:
        """Bring what the intake counts up to date; all values are cumulative but fill and streams."""
        self.observe_waits(wait_seconds)
        self.input_fill_ratio.set(fill_ratio)
        self._dropped.follow(dropped)
        self.streams.set(streams)
        self.duplicates.inc(duplicates - self._duplicates)
        self._duplicates = duplicates

    def observe_waits(self, wait_seconds: Mapping[str, float]) -> None:
        """Bring the wait timers up to date: cumulative seconds by reason."""
        self._waits.follow(wait_seconds)

    def observe_ages(self, lags: npt.NDArray[np.int64]) -> None:
        """Enter the ages ``[M]`` of items drawn, in updates."""
        for lag in lags:
            self.sample_age.observe(int(lag))

    def observe_update(self, report: TrainingReport, num_transitions: int, samples: int) -> None:
        """Count one exchange: ``num_transitions`` trained on, ``samples`` with every epoch."""
        self.updates.inc()
        self.transitions.labels(state="trained", reason="").inc(num_transitions)
        self.samples.inc(samples)
        self.non_finite.inc(report.metrics.get("non_finite", 0.0))
        for lag in report.policy_lags:
            self.trained_policy_lag.observe(lag)
        if report.episode_return_mean is not None:
            self.episode_return.set(report.episode_return_mean)
