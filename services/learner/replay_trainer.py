"""The learner's loop over replay: draw, learn, send priorities back, publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from headrace.clients.directory import DirectoryFollower
from headrace.clients.replay_pool import PoolDraw, ShardPool
from headrace.config.choices import off_policy
from headrace.config.sections import Config
from headrace.rl.algorithm import ReplayAlgorithm
from headrace.rl.initial_priorities import SMALLEST
from headrace.types import ReplayBatch
from services.learner.drawing import Draws
from services.learner.exchanging import ROUND, Exchange, Learned, mean_losses
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
        self._learned = Learned({}, (), 0, 0, 0, 0)  # what was handed in last, and its items' errors
        self._td_errors: list[npt.NDArray[np.float32]] = []

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
        collected: list[PoolDraw] = []
        with Prefetcher(source, depth=self._config.learner.prefetch) as draws:
            while not self._stopping():
                draw = draws.take(timeout_s=_POLL_S)
                self._metrics.observe_waits({**draws.wait_seconds, ROUND: self._exchange.wait_seconds})
                if draw is None:
                    continue
                collected.append(draw)
                if len(collected) < self._exchange.updates:
                    continue
                if self._train(collected):
                    return
                collected = []

    @property
    def _version(self) -> int:
        version = self._exchange.version
        return 0 if version is None else version.number

    def _train(self, draws: Sequence[PoolDraw]) -> bool:
        """One exchange: an update, or as many as ``sync.local_steps`` asks for. Whether it was the last."""
        exchanged = self._exchange.exchange(lambda: self._learn(draws))
        if exchanged is None:
            return True
        if self._config.replay.selector == "prioritized":
            for draw, td_errors in zip(draws, self._td_errors, strict=True):
                self._pool.update_priorities(draw, td_errors + SMALLEST)
        self._directory.report(self._version)
        if not exchanged.dropped:
            learned = self._learned
            report = self._exchange.progress.report(learned.losses, learned.lags)
            self._metrics.observe_update(report, 0, learned.samples)
        return exchanged.status.ended

    def _learn(self, draws: Sequence[PoolDraw]) -> Learned:
        began, env_steps = self._clock(), self._env_steps()
        progress = self._exchange.progress.share(self._config.run.stop)
        updates = [
            self._algorithm.learn(
                ReplayBatch(draw.columns, draw.importance_weights, self._settings.gradient_steps),
                env_steps=env_steps,
                progress=progress,
            )
            for draw in draws
        ]
        self._metrics.update_seconds.observe(self._clock() - began)
        self._td_errors = [update.td_errors for update in updates]
        ages = [self._ages(draw) for draw in draws]
        samples = sum(len(draw.versions) for draw in draws)
        view = self._directory.view()
        self._learned = Learned(
            losses=mean_losses([update.metrics for update in updates]),
            lags=tuple(np.concatenate(ages).tolist()),
            env_steps=env_steps,
            samples=samples,
            weight=samples,
            episodes=0 if view is None else view.episodes,
            returns=() if view is None else tuple(view.recent_returns),
            counts_whole_run=True,
        )
        return self._learned

    def _ages(self, draw: PoolDraw) -> npt.NDArray[np.int64]:
        """Policy lags of some items of a draw, in updates."""
        ages = np.maximum(0, self._version - draw.versions[:: max(1, len(draw.versions) // _AGES)])
        self._metrics.observe_ages(ages)
        return ages

    def _env_steps(self) -> int:
        """Environment steps of the run, as the directory says: learners see no episodes themselves."""
        view = self._directory.view()
        known = self._exchange.progress.env_steps
        return known if view is None else max(known, view.env_steps)
