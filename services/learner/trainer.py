"""The learner's loop: take a batch, learn, publish, settle. The algorithm knows nothing of networks.

A batch counts as trained only once the version made from it is published: the accounts that say so
travel with that version. If the learner dies before, the samplers still hold the fragments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from headrace.config.sections import Config
from headrace.rl.algorithm import Algorithm
from headrace.trail import FragmentTrail
from headrace.types import EPISODE_RETURN
from services.learner.batches import Batches, ReadyBatch
from services.learner.exchanging import ROUND, Exchange, Exchanged, Learned, mean_losses
from services.learner.intake import Intake
from services.learner.metrics import LearnerMetrics
from services.learner.prefetch import Prefetcher
from services.learner.terms import fragments_per_update

_POLL_S = 0.2


class Trainer:
    """Turns batches into published versions until the run ends.

    Invariants: one exchange, one version; ``accounts`` published with a version include exactly the
    batches behind it. A batch whose work was dropped is dropped itself.
    """

    def __init__(
        self,
        *,
        config: Config,
        algorithm: Algorithm,
        intake: Intake,
        exchange: Exchange,
        trail: FragmentTrail,
        metrics: LearnerMetrics,
        stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._algorithm = algorithm
        self._intake = intake
        self._exchange = exchange
        self._learned = Learned({}, (), 0, 0, 0, 0)  # what was handed in last
        self._trail = trail
        self._metrics = metrics
        self._stopping = stopping
        self._clock = clock

    def recover(self) -> None:
        """Go on from the newest version of the paramserver, or publish the initial parameters first."""
        accounts = self._exchange.recover()
        assert self._exchange.version is not None, "an exchange recovers to a version"
        self._intake.restore(accounts, self._exchange.version)
        self._intake.set_updates(self._exchange.updates)

    def run(self) -> None:
        """Train until told to stop, or until the run's state says that it has ended."""
        source = Batches(self._intake, each=fragments_per_update(self._config))
        with Prefetcher(source, depth=self._config.learner.prefetch) as batches:
            while not self._stopping():
                ready = batches.take(timeout_s=_POLL_S)
                self._observe_intake(batches.wait_seconds)
                if ready is None:
                    continue
                exchanged = self._train(ready)
                if exchanged is None or exchanged.status.ended:
                    return

    def _observe_intake(self, wait_seconds: Mapping[str, float]) -> None:
        intake = self._intake
        self._metrics.observe_intake(
            wait_seconds={**wait_seconds, ROUND: self._exchange.wait_seconds},
            fill_ratio=intake.fill_ratio,
            dropped=intake.dropped,
            streams=intake.num_streams,
            duplicates=intake.duplicates,
        )

    def _train(self, ready: ReadyBatch) -> Exchanged | None:
        """One exchange: an update, or as many as ``sync.local_steps`` asks for."""
        exchanged = self._exchange.exchange(lambda: self._learn(ready))
        if exchanged is None:
            return None
        self._intake.set_updates(self._exchange.updates)
        if exchanged.dropped:
            self._intake.discard(ready.taken, exchanged.version, exchanged.dropped)
            return exchanged
        self._intake.commit(ready.taken, exchanged.version)
        learned = self._learned
        report = self._exchange.progress.report(learned.losses, learned.lags)
        self._metrics.observe_update(report, learned.env_steps, learned.samples)
        for fragment, lag in zip(ready.taken.fragments, ready.taken.lags, strict=True):
            self._trail.append(fragment, trained_into=exchanged.version, lag=lag)
        return exchanged

    def _learn(self, ready: ReadyBatch) -> Learned:
        began = self._clock()
        progress = self._exchange.progress.share(self._config.run.stop)
        losses = [self._algorithm.update(batch, progress=progress) for batch in ready.batches]
        self._metrics.update_seconds.observe(self._clock() - began)
        steps = [batch.num_transitions for batch in ready.batches]
        returns = [one for batch in ready.batches for one in batch.columns[EPISODE_RETURN].tolist()]
        self._learned = Learned(
            losses=mean_losses(losses),
            lags=ready.taken.lags,
            env_steps=sum(steps),
            samples=sum(num * int(loss.get("epochs", 1)) for num, loss in zip(steps, losses, strict=True)),
            weight=sum(steps),
            episodes=len(returns),
            returns=tuple(returns),
            accounts=tuple(self._intake.accounts(including=ready.taken)),
        )
        return self._learned
