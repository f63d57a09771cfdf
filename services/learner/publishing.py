"""Publishing: what the one learner of a run has learned becomes a version, with what a restart needs."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.clients.parameters import PublishClient
from headrace.config.choices import updates_per_exchange
from headrace.config.sections import Config
from headrace.types import Array, LearnerAccount, PolicyVersion, TrainingReport
from services.learner.exchanging import Exchanged, Learned, Trainable
from services.learner.metrics import LearnerMetrics
from services.learner.progress import Progress

_TRAINING_BLOB_ALWAYS_BYTES = 4 * 2**20  # up to this size the training state rides with every version


class PublishingExchange:
    """Publishes versions of one algorithm, each on top of the one before."""

    def __init__(
        self,
        config: Config,
        algorithm: Trainable,
        client: PublishClient,
        metrics: LearnerMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._algorithm = algorithm
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._want_training = True
        self.updates = updates_per_exchange(config)
        self.progress = Progress()
        self.wait_seconds = 0.0  # there are no others
        self.version: PolicyVersion | None = None

    def recover(self) -> tuple[LearnerAccount, ...]:
        """Load the newest version, or publish the initial one; returns the accounts that go with it."""
        fetched = self._client.fetch(with_training=True)
        if fetched is None:
            self._publish(self.progress.report({}, ()), ())
            return ()
        self._algorithm.load(fetched.snapshot.parameters, fetched.training)
        self.version = fetched.snapshot.version
        self.progress = Progress.from_columns(fetched.training or {}, fetched.report)
        return fetched.accounts

    def exchange(self, work: Callable[[], Learned]) -> Exchanged:
        """Learn, and publish what the algorithm then holds as the next version."""
        learned = work()
        self.progress.add(learned)
        return self._publish(self.progress.report(learned.losses, learned.lags), learned.accounts)

    def _publish(self, report: TrainingReport, accounts: tuple[LearnerAccount, ...]) -> Exchanged:
        acting = self._algorithm.acting_parameters()
        training = self._training_state(wanted=self._want_training)
        began = self._clock()
        published = self._client.publish(self.version, acting, training, report, accounts)
        self._metrics.publish_seconds.observe(self._clock() - began)
        if published.want_training and published.run_state.ended:
            # The run's last checkpoint must hold what a resumed run needs: say the same version again.
            training = self._training_state(wanted=True)
            published = self._client.publish(self.version, acting, training, report, accounts)
        self.version = published.version
        self._want_training = published.want_training
        return Exchanged(published.version, published.run_state)

    def _training_state(self, *, wanted: bool) -> dict[str, Array] | None:
        state = {**self._algorithm.training_state(), **self.progress.to_columns()}
        small = sum(array.nbytes for array in state.values()) <= _TRAINING_BLOB_ALWAYS_BYTES
        return state if small or wanted else None
