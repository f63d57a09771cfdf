"""The learner's loop over replay: draw, learn, send priorities back, publish."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from headrace.clients.directory import DirectoryFollower
from headrace.clients.parameters import Published
from headrace.clients.replay_pool import PoolDraw, ShardPool
from headrace.config.choices import off_policy
from headrace.config.sections import Config
from headrace.rl.algorithm import ReplayAlgorithm
from headrace.rl.initial_priorities import SMALLEST
from headrace.types import ReplayBatch
from services.learner.drawing import Draws
from services.learner.metrics import LearnerMetrics
from services.learner.prefetch import Prefetcher
from services.learner.progress import Progress
from services.learner.publishing import VersionPublisher

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
        publisher: VersionPublisher,
        metrics: LearnerMetrics,
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._settings = off_policy(config)
        self._algorithm = algorithm
        self._pool = pool
        self._directory = directory
        self._publisher = publisher
        self._metrics = metrics
        self._stopping = stopping
        self._clock = clock
        self.progress = Progress()

    def recover(self) -> None:
        """Go on from the newest version of the paramserver, or publish the initial parameters first."""
        recovered = self._publisher.recover()
        if recovered is None:
            self._publisher.publish(self.progress.report({}, ()), self.progress, [])
        else:
            _, self.progress = recovered

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
                if draw is not None and self._train(draw).run_state.ended:
                    return

    @property
    def _version(self) -> int:
        version = self._publisher.version
        return 0 if version is None else version.number

    def _train(self, draw: PoolDraw) -> Published:
        began, progress, settings = self._clock(), self.progress, self._settings
        self._look_around()
        learned = self._algorithm.learn(
            ReplayBatch(draw.columns, draw.importance_weights, settings.gradient_steps),
            env_steps=progress.env_steps,
            progress=progress.share(self._config.run.stop),
        )
        if self._config.replay.selector == "prioritized":
            self._pool.update_priorities(draw, learned.td_errors + SMALLEST)
        self._metrics.update_seconds.observe(self._clock() - began)
        ages = np.maximum(0, self._version - draw.versions[:: max(1, len(draw.versions) // _AGES)])
        progress.updates += 1
        progress.samples_trained += len(draw.versions)
        report = progress.report(learned.metrics, tuple(ages.tolist()))
        published = self._publisher.publish(report, progress, [])
        self._directory.report(self._version)
        self._metrics.observe_update(report, 0)
        self._metrics.observe_ages(ages)
        return published

    def _look_around(self) -> None:
        """What the run has come to, as the directory says: learners see no episodes themselves."""
        view, progress = self._directory.view(), self.progress
        if view is None:
            return
        progress.env_steps = max(progress.env_steps, view.env_steps)
        if view.episodes >= progress.episodes:
            progress.episodes = view.episodes
            progress.recent_returns.clear()
            progress.recent_returns.extend(view.recent_returns)
