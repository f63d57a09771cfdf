"""The learner's loop: take a batch, learn, publish, settle. The algorithm knows nothing of networks.

A batch counts as trained only once the version made from it is published: the accounts that say so
travel with that version. If the learner dies before, the samplers still hold the fragments.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from headrace.clients.parameters import PublishClient, Published
from headrace.config.sections import Config
from headrace.rl.algorithm import Algorithm
from headrace.trail import FragmentTrail
from headrace.types import EPISODE_RETURN, Array, Fragment, PolicyVersion, TrainingReport
from services.learner.intake import Intake
from services.learner.metrics import LearnerMetrics
from services.learner.prefetch import Prefetcher, ReadyBatch
from services.learner.stock import TakenBatch

_TRAINING_BLOB_ALWAYS_BYTES = 4 * 2**20  # up to this size the training state rides with every version
_POLL_S = 0.2


@dataclass(slots=True)
class Progress:
    """Counters of the whole run; they go on after a restart of the learner."""

    env_steps: int = 0
    updates: int = 0
    samples_trained: int = 0
    episodes: int = 0
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))

    def add_episodes(self, fragments: list[Fragment]) -> None:
        """Take in the episodes that ended in these fragments."""
        for fragment in fragments:
            returns = fragment.columns[EPISODE_RETURN]
            self.episodes += len(returns)
            self.recent_returns.extend(float(value) for value in returns)

    def to_columns(self) -> dict[str, Array]:
        """As arrays, for the training blob."""
        return {
            "progress/recent_returns": np.array(self.recent_returns, np.float64),
            "progress/counters": np.array(
                [self.env_steps, self.updates, self.samples_trained, self.episodes], np.int64
            ),
        }

    @classmethod
    def from_columns(cls, training: Mapping[str, Array], report: TrainingReport) -> Progress:
        """Counters from the version's report (always as new as its parameters); returns from the blob."""
        progress = cls(report.env_steps, report.updates, report.samples_trained, report.episodes)
        progress.recent_returns.extend(float(v) for v in training.get("progress/recent_returns", np.empty(0)))
        return progress


class Trainer:
    """Turns batches into published versions until the run ends.

    Invariants: one update, one version; ``accounts`` published with a version include exactly the
    batches behind it.
    """

    def __init__(
        self,
        *,
        config: Config,
        algorithm: Algorithm,
        intake: Intake,
        publisher: PublishClient,
        trail: FragmentTrail,
        metrics: LearnerMetrics,
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._algorithm = algorithm
        self._intake = intake
        self._publisher = publisher
        self._trail = trail
        self._metrics = metrics
        self._stopping = stopping
        self._clock = clock
        self._version: PolicyVersion | None = None
        self._want_training = True
        self.progress = Progress()

    def recover(self) -> None:
        """Go on from the newest version of the paramserver, or publish the initial parameters first."""
        fetched = self._publisher.fetch(with_training=True)
        if fetched is None:
            published = self._publish(base=None, report=self._report({}, ()), accounts=None)
            self._intake.restore([], published.version)
            return
        training = fetched.training or {}
        self._algorithm.load(fetched.snapshot.parameters, fetched.training)
        self.progress = Progress.from_columns(training, fetched.report)
        self._version = fetched.snapshot.version
        self._intake.restore(list(fetched.accounts), self._version)

    def run(self) -> None:
        """Train until told to stop, or until the run's state says that it has ended."""
        with Prefetcher(self._intake, depth=self._config.learner.prefetch) as batches:
            while not self._stopping():
                ready = batches.take(timeout_s=_POLL_S)
                self._observe_intake(batches.wait_seconds)
                if ready is None:
                    continue
                if self._train(ready).run_state.ended:
                    return

    def _observe_intake(self, wait_seconds: Mapping[str, float]) -> None:
        intake = self._intake
        self._metrics.observe_intake(
            wait_seconds=wait_seconds,
            fill_ratio=intake.fill_ratio,
            dropped=intake.dropped,
            streams=intake.num_streams,
            duplicates=intake.duplicates,
        )

    def _train(self, ready: ReadyBatch) -> Published:
        began = self._clock()
        losses = self._algorithm.update(ready.batch, progress=self._schedule_progress())
        self._metrics.update_seconds.observe(self._clock() - began)
        self.progress.updates += 1
        self.progress.env_steps += ready.batch.num_transitions
        self.progress.samples_trained += ready.batch.num_transitions * int(losses.get("epochs", 1))
        self.progress.add_episodes(ready.taken.fragments)
        report = self._report(losses, ready.taken.lags)
        published = self._publish(base=self._version, report=report, accounts=ready.taken)
        self._intake.commit(ready.taken, published.version)
        self._metrics.observe_update(report, ready.batch.num_transitions)
        for fragment, lag in zip(ready.taken.fragments, ready.taken.lags, strict=True):
            self._trail.append(fragment, trained_into=published.version, lag=lag)
        return published

    def _publish(
        self, *, base: PolicyVersion | None, report: TrainingReport, accounts: TakenBatch | None
    ) -> Published:
        acting = self._algorithm.acting_parameters()
        settled = self._intake.accounts(including=accounts)
        training = self._training_state(self._want_training)
        began = self._clock()
        published = self._publisher.publish(base, acting, training, report, settled)
        self._metrics.publish_seconds.observe(self._clock() - began)
        if published.want_training and published.run_state.ended:
            # The run's last checkpoint must hold what a resumed run needs: say the same version again.
            training = self._training_state(True)
            published = self._publisher.publish(base, acting, training, report, settled)
        self._version = published.version
        self._want_training = published.want_training
        return published

    def _training_state(self, wanted: bool) -> dict[str, Array] | None:
        state = {**self._algorithm.training_state(), **self.progress.to_columns()}
        small = sum(array.nbytes for array in state.values()) <= _TRAINING_BLOB_ALWAYS_BYTES
        return state if small or wanted else None

    def _schedule_progress(self) -> float:
        """How far the run is, in [0, 1], for schedules: by environment steps, else by updates."""
        stop = self._config.run.stop
        if stop.env_steps is not None:
            return min(1.0, self.progress.env_steps / stop.env_steps)
        if stop.updates is not None:
            return min(1.0, self.progress.updates / stop.updates)
        return 0.0

    def _report(self, losses: Mapping[str, float], lags: tuple[int, ...]) -> TrainingReport:
        returns = self.progress.recent_returns
        return TrainingReport(
            env_steps=self.progress.env_steps,
            updates=self.progress.updates,
            samples_trained=self.progress.samples_trained,
            episodes=self.progress.episodes,
            episode_return_mean=float(np.mean(returns)) if returns else None,
            episode_return_std=float(np.std(returns)) if returns else None,
            metrics=dict(losses),
            policy_lags=lags,
        )
