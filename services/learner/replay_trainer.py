"""The learner's loop over replay: draw, learn, send priorities back, publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from headrace.clients.directory import DirectoryFollower
from headrace.clients.replay_pool import PoolDraw, ShardPool
from headrace.config.choices import off_policy, updates_per_exchange
from headrace.config.sections import Config
from headrace.rl.algorithm import ReplayAlgorithm
from headrace.rl.initial_priorities import SMALLEST
from headrace.types import ReplayBatch
from services.learner.drawing import Draws
from services.learner.exchanging import Exchange, Learned, mean_losses
from services.learner.metrics import LearnerMetrics
from services.learner.prefetch import Prefetcher

_POLL_S = 0.2
_AGES = 64  # of the items of an update, that are looked at


class ReplayTrainer:
    """Turns draws into published versions until the run ends. One update, one version.

    An update is ``algorithm.gradient_steps`` gradient steps, each on ``algorithm.batch_size`` items, all
    drawn together: priorities go back once, after it.
    """

    def __init__(
        self,
        *,
        config: Config,
        algorithm: ReplayAlgorithm,
        pool: ShardPool,
        directory: DirectoryFollower,
        exchange: Exchange,
        metrics: LearnerMetrics,
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._settings = off_policy(config)
        self._algorithm = algorithm
        self._pool = pool
        self._directory = directory
        self._exchange = exchange
        self._metrics = metrics
        self._stopping = stopping
        self._clock = clock
        self._since_exchange: list[tuple[Mapping[str, float], tuple[int, ...], int]] = []

    def recover(self) -> None:
        """Go on from the newest version of the paramserver, or publish the initial parameters first."""
        self._exchange.recover()

    def run(self) -> None:
        """Train until told to stop, or until the run's state says that it has ended."""
        source = Draws(
            self._pool,
            self._directory,
            num_items=self._settings.batch_size * self._settings.gradient_steps,
            newest_version=lambda: self._version,
        )
        with Prefetcher(source, depth=self._config.learner.prefetch) as draws:
            while not self._stopping():
                draw = draws.take(timeout_s=_POLL_S)
                self._metrics.observe_waits(draws.wait_seconds)
                if draw is not None and self._train(draw):
                    return

    @property
    def _version(self) -> int:
        version = self._exchange.version
        return 0 if version is None else version.number

    def _train(self, draw: PoolDraw) -> bool:
        """One update; an exchange after as many as ``sync.local_steps`` asks for. Whether it was the last."""
        began, settings = self._clock(), self._settings
        env_steps = self._env_steps()
        learned = self._algorithm.learn(
            ReplayBatch(draw.columns, draw.importance_weights, settings.gradient_steps),
            env_steps=env_steps,
            progress=self._exchange.progress.share(self._config.run.stop),
        )
        if self._config.replay.selector == "prioritized":
            self._pool.update_priorities(draw, learned.td_errors + SMALLEST)
        self._metrics.update_seconds.observe(self._clock() - began)
        ages = np.maximum(0, self._version - draw.versions[:: max(1, len(draw.versions) // _AGES)])
        self._metrics.observe_ages(ages)
        self._since_exchange.append((learned.metrics, tuple(ages.tolist()), len(draw.versions)))
        if len(self._since_exchange) < updates_per_exchange(self._config):
            return False
        return self._hand_in(env_steps)

    def _hand_in(self, env_steps: int) -> bool:
        done, self._since_exchange = self._since_exchange, []
        samples = sum(num for _, _, num in done)
        view = self._directory.view()
        learned = Learned(
            losses=mean_losses([losses for losses, _, _ in done]),
            lags=tuple(age for _, ages, _ in done for age in ages),
            env_steps=env_steps,
            samples=samples,
            weight=samples,
            episodes=0 if view is None else view.episodes,
            returns=() if view is None else tuple(view.recent_returns),
            counts_whole_run=True,
        )
        exchanged = self._exchange.exchange(learned)
        if exchanged is None:
            return True
        self._directory.report(self._version)
        if not exchanged.dropped:
            report = self._exchange.progress.report(learned.losses, learned.lags)
            self._metrics.observe_update(report, 0, samples)
        return exchanged.status.ended

    def _env_steps(self) -> int:
        """Environment steps of the run, as the directory says: learners see no episodes themselves."""
        view = self._directory.view()
        known = self._exchange.progress.env_steps
        return known if view is None else max(known, view.env_steps)
