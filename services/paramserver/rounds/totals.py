"""The counters of a whole run, put together from what its learners have done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.checkpoint import VersionRecord
from headrace.sync.contribution import MAX_RETURNS
from headrace.types import Array, LearnerAccount, SamplerIdentity, TrainingReport
from services.paramserver.rounds.model import Part

RETURNS, COUNTERS = "progress/recent_returns", "progress/counters"
"""Names under which a learner that goes on finds the counters in the training state."""

_MAX_LAGS = 4096  # entries of a report: a round of many learners may have trained on many fragments


class Totals:
    """Environment steps, updates, samples and episodes of a run, and its learners' ledger."""

    def __init__(self, record: VersionRecord, training: Mapping[str, Array]) -> None:
        """Go on from a published version."""
        report = record.report
        self._env_steps, self._updates = report.env_steps, report.updates
        self._samples, self._episodes = report.samples_trained, report.episodes
        self._returns: deque[float] = deque(training.get(RETURNS, np.empty(0)).tolist(), maxlen=MAX_RETURNS)
        self.accounts = record.accounts

    def add(self, parts: Sequence[Part]) -> TrainingReport:
        """One more version, made of ``parts``; returns its report. Its metrics are means by weight."""
        self._updates += 1
        for contribution in (part.contribution for part in parts):
            work = contribution.work
            self._samples += work.samples_trained
            if work.counts_whole_run:
                self._env_steps = max(self._env_steps, work.env_steps)
                if work.episodes >= self._episodes:
                    self._episodes = work.episodes
                    self._returns = deque(work.returns, maxlen=MAX_RETURNS)
            else:
                self._env_steps += work.env_steps
                self._episodes += work.episodes
                self._returns.extend(work.returns)
            self.accounts = merged_accounts(self.accounts, contribution.accounts)
        lags = [lag for part in parts for lag in part.contribution.work.policy_lags]
        return TrainingReport(
            env_steps=self._env_steps,
            updates=self._updates,
            samples_trained=self._samples,
            episodes=self._episodes,
            episode_return_mean=float(np.mean(self._returns)) if self._returns else None,
            episode_return_std=float(np.std(self._returns)) if self._returns else None,
            metrics={**_mean_metrics(parts), "contributions": float(len(parts))},
            policy_lags=tuple(lags[:_MAX_LAGS]),
        )

    def columns(self) -> dict[str, Array]:
        """The counters as arrays, for the training state."""
        counters = [self._env_steps, self._updates, self._samples, self._episodes]
        return {RETURNS: np.array(self._returns, np.float64), COUNTERS: np.array(counters, np.int64)}


def merged_accounts(
    known: Iterable[LearnerAccount], brought: Iterable[LearnerAccount]
) -> tuple[LearnerAccount, ...]:
    """The newer account of each sampler incarnation. Accounts only grow, whoever keeps them."""
    accounts: dict[SamplerIdentity, LearnerAccount] = {account.sampler: account for account in known}
    for account in brought:
        old = accounts.get(account.sampler)
        if old is None or account.settled_through > old.settled_through:
            accounts[account.sampler] = account
    return tuple(accounts.values())


def _mean_metrics(parts: Sequence[Part]) -> dict[str, float]:
    brought = [
        (part.contribution.work.metrics, part.contribution.num_samples * part.factor) for part in parts
    ]
    used = [(metrics, weight) for metrics, weight in brought if weight > 0.0]
    names = {name: None for metrics, _ in used for name in metrics}
    means: dict[str, float] = {}
    for name in names:
        having = [(metrics[name], weight) for metrics, weight in used if name in metrics]
        means[name] = sum(value * weight for value, weight in having) / sum(weight for _, weight in having)
    return means
