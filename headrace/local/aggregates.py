"""Adds up what the services' counters say, over restarts. Pure: fed with scrapes, no clock of its own.

A counter begins at zero again in a new process, so growth is measured per process id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.local.scrape import Samples

ENV_STEPS = "headrace_sampler_env_steps_total"
THROTTLED = "headrace_sampler_throttled_seconds_total"
WAITED = "headrace_learner_wait_seconds_total"
LAG_BUCKET = "headrace_learner_trained_policy_lag_bucket"
FILL_RATIO = "headrace_learner_input_fill_ratio"
UPDATES = "headrace_learner_updates_total"
DRAWN = "headrace_replay_samples_total"
HOT_FILL = "headrace_sampler_hot_tier_fill_ratio"
COLD_FILL = "headrace_replay_fill_ratio"
DRIFT = "headrace_replay_mass_drift"
MEMBERS = "headrace_replay_members"
LEARNERS = "headrace_paramserver_learners"
OUTCOMES = "headrace_paramserver_gradients_total"
GRADIENT_LAG = "headrace_paramserver_gradient_lag"
LOCAL_STEPS = "headrace_paramserver_local_steps"
IDLE = "headrace_paramserver_idle_share"
JITTER = "headrace_paramserver_return_jitter"


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds spent one way out of seconds watched."""

    spent_s: float = 0.0
    watched_s: float = 0.0

    @property
    def ratio(self) -> float | None:
        """The share, in [0, 1]; None before anything was watched."""
        return min(1.0, self.spent_s / self.watched_s) if self.watched_s > 0 else None

    def since(self, before: Share) -> Share:
        """The part after ``before``."""
        return Share(self.spent_s - before.spent_s, self.watched_s - before.watched_s)


@dataclass(frozen=True, slots=True)
class Mark:
    """The totals at one moment, so that two of them give rates."""

    at: float
    env_steps: float
    updates: float
    throttled: Share
    waited: Share


@dataclass(frozen=True, slots=True)
class _Last:
    """The last scrape of one process."""

    pid: int
    at: float
    samples: Samples


@dataclass(slots=True)
class Aggregates:
    """Totals of the whole run. Times are seconds of one monotonic clock, passed in."""

    throttled: Share = field(default_factory=Share)
    waited: Share = field(default_factory=Share)
    env_steps: float = 0.0
    updates: float = 0.0
    lags: dict[float, float] = field(default_factory=dict)
    """Trained fragments by upper bound of their lag bucket (not cumulative), in updates."""
    fill_ratio: float | None = None
    drawn: dict[str, float] = field(default_factory=dict)
    """Items drawn from replay, by tier."""
    drift: float | None = None
    evaluation_return: float | None = None
    rounds: dict[str, float] = field(default_factory=dict)
    """How rounds stand, see :class:`headrace.local.row.Row`; empty where one learner publishes."""
    _last: dict[str, _Last] = field(default_factory=dict)

    def observe(self, name: str, pid: int, samples: Samples, now: float) -> None:
        """Take in one scrape of process ``name``."""
        last = self._last.get(name)
        if last is not None and last.pid != pid:
            last = None
        self._last[name] = _Last(pid, now, samples)
        self._add_drawn(samples, None if last is None else last.samples)
        service = name.rpartition("-")[0]
        if service == "sampler":
            self.env_steps += _growth(samples, last, ENV_STEPS)
            self.throttled = _watch(self.throttled, samples, last, THROTTLED, now)
        elif service == "learner":
            self.updates += _growth(samples, last, UPDATES)
            self.waited = _watch(self.waited, samples, last, WAITED, now)
            self.fill_ratio = samples.single(FILL_RATIO)
            self._add_lags(samples, None if last is None else last.samples)
        elif service == "paramserver":
            self.rounds = _rounds(samples)
        elif service == "replay" and samples.total(MEMBERS):
            self.drift = samples.single(DRIFT)
        elif service == "evaluator" and samples.total("headrace_evaluator_evaluations_total"):
            self.evaluation_return = samples.single("headrace_evaluator_return")

    def tier_fill(self, service: str, name: str) -> float | None:
        """Mean fill of a tier over the processes of ``service``; None where there is none."""
        fills = [
            last.samples.total(name)
            for process, last in self._last.items()
            if process.rpartition("-")[0] == service and name in last.samples.values
        ]
        return sum(fills) / len(fills) if fills else None

    def replay(self) -> dict[str, float]:
        """How replay stands, see :class:`headrace.local.row.Row`; empty for runs without it."""
        total = sum(self.drawn.values())
        found = {
            "hot_fill": self.tier_fill("sampler", HOT_FILL),
            "cold_fill": self.tier_fill("replay", COLD_FILL),
            "hot_hits": self.drawn.get("hot", 0.0) / total if total else None,
            "drift": self.drift,
        }
        if self.drift is None:
            return {}
        return {name: value for name, value in found.items() if value is not None}

    def mark(self, now: float) -> Mark:
        """The totals as they are."""
        return Mark(now, self.env_steps, self.updates, self.throttled, self.waited)

    def lag_quantile(self, quantile: float) -> float | None:
        """Upper bound of the bucket that holds this quantile of trained fragments, in updates."""
        return quantile_of(self.lags, quantile)

    def _add_drawn(self, samples: Samples, before: Samples | None) -> None:
        then = {} if before is None else before.by_label(DRAWN, "tier")
        for tier, count in samples.by_label(DRAWN, "tier").items():
            grown = count - then.get(tier, 0.0)
            if grown > 0:
                self.drawn[tier] = self.drawn.get(tier, 0.0) + grown

    def _add_lags(self, samples: Samples, before: Samples | None) -> None:
        now, then = _buckets(samples), _buckets(before) if before is not None else {}
        for bound, count in now.items():
            grown = count - then.get(bound, 0.0)
            if grown > 0:
                self.lags[bound] = self.lags.get(bound, 0.0) + grown


def quantile_of(counts: Mapping[float, float], quantile: float) -> float | None:
    """Smallest value such that at least ``quantile`` of all counts lie at or below it; None if empty."""
    total = sum(counts.values())
    seen = 0.0
    for value in sorted(counts):
        seen += counts[value]
        if total and seen >= quantile * total:
            return value
    return None


def _growth(samples: Samples, last: _Last | None, name: str) -> float:
    return max(0.0, samples.total(name) - (last.samples.total(name) if last else 0.0))


def _rounds(samples: Samples) -> dict[str, float]:
    outcomes = samples.by_label(OUTCOMES, "outcome")
    total = sum(outcomes.values())
    if not samples.total(LEARNERS) and not total:
        return {}
    count = samples.total(f"{GRADIENT_LAG}_count")
    found = {
        "learners": samples.total(LEARNERS),
        "contribution_lag": samples.total(f"{GRADIENT_LAG}_sum") / count if count else 0.0,
        "refused": (outcomes.get("stale", 0.0) + outcomes.get("invalid", 0.0)) / total if total else 0.0,
    }
    if samples.total(LOCAL_STEPS):
        found |= {"local_steps": samples.total(LOCAL_STEPS), "idle_share": samples.total(IDLE)}
        found["return_jitter"] = samples.total(JITTER)
    return found


def _watch(share: Share, samples: Samples, last: _Last | None, name: str, now: float) -> Share:
    """The first scrape of a process is only the beginning: what it waited for at its start isn't counted."""
    if last is None:
        return share
    return Share(share.spent_s + _growth(samples, last, name), share.watched_s + now - last.at)


def _buckets(samples: Samples) -> dict[float, float]:
    """Counts by upper bound, made from the cumulative buckets. The open one counts as the last bound."""
    cumulative = sorted((float(le), count) for le, count in samples.by_label(LAG_BUCKET, "le").items())
    counts: dict[float, float] = {}
    below, last_bound = 0.0, 0.0
    for bound, count in cumulative:
        last_bound = bound if math.isfinite(bound) else last_bound
        counts[last_bound] = counts.get(last_bound, 0.0) + count - below
        below = count
    return counts
