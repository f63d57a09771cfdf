"""The learner's loop: take a batch, learn, publish, settle. The algorithm knows nothing of networks.

A batch counts as trained only once the version made from it is published: the accounts that say so
travel with that version. If the learner dies before, the samplers still hold the fragments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headrace.clients.parameters import Published
from headrace.config.sections import Config
from headrace.rl.algorithm import Algorithm
from headrace.trail import FragmentTrail
from headrace.types import EPISODE_RETURN
from services.learner.batches import Batches, ReadyBatch
from services.learner.intake import Intake
from services.learner.metrics import LearnerMetrics
from services.learner.prefetch import Prefetcher
from services.learner.progress import Progress
from services.learner.publishing import VersionPublisher

_POLL_S = 0.2


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
        publisher: VersionPublisher,
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
        self.progress = Progress()

    def recover(self) -> None:
        """Go on from the newest version of the paramserver, or publish the initial parameters first."""
        recovered = self._publisher.recover()
        if recovered is None:
            published = self._publisher.publish(
                self.progress.report({}, ()), self.progress, self._intake.accounts(including=None)
            )
            self._intake.restore([], published.version)
            return
        fetched, self.progress = recovered
        self._intake.restore(list(fetched.accounts), fetched.snapshot.version)

    def run(self) -> None:
        """Train until told to stop, or until the run's state says that it has ended."""
        with Prefetcher(Batches(self._intake), depth=self._config.learner.prefetch) as batches:
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
        progress, fragments = self.progress, ready.taken.fragments
        losses = self._algorithm.update(ready.batch, progress=progress.share(self._config.run.stop))
        self._metrics.update_seconds.observe(self._clock() - began)
        progress.updates += 1
        progress.env_steps += ready.batch.num_transitions
        progress.samples_trained += ready.batch.num_transitions * int(losses.get("epochs", 1))
        for fragment in fragments:
            progress.add_episodes(fragment.columns[EPISODE_RETURN])
        report = progress.report(losses, ready.taken.lags)
        accounts = self._intake.accounts(including=ready.taken)
        published = self._publisher.publish(report, progress, accounts)
        self._intake.commit(ready.taken, published.version)
        self._metrics.observe_update(report, ready.batch.num_transitions)
        for fragment, lag in zip(fragments, ready.taken.lags, strict=True):
            self._trail.append(fragment, trained_into=published.version, lag=lag)
        return published
