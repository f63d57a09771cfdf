"""Publishing: what an algorithm has learned becomes a version, together with what a restart needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.clients.parameters import Fetched, PublishClient, Published
from headrace.types import Array, LearnerAccount, PolicyVersion, TrainingReport
from services.learner.metrics import LearnerMetrics
from services.learner.progress import Progress

_TRAINING_BLOB_ALWAYS_BYTES = 4 * 2**20  # up to this size the training state rides with every version


class Trainable(Protocol):
    """What publishing needs of an algorithm."""

    def acting_parameters(self) -> dict[str, Array]:
        """What a sampler needs to act. Copies."""
        ...

    def training_state(self) -> dict[str, Array]:
        """What else the next update depends on. Copies."""
        ...

    def load(self, acting: Mapping[str, Array], training: Mapping[str, Array] | None) -> None:
        """Go on from saved state; ValueError or KeyError if it belongs to another network or algorithm."""
        ...


class VersionPublisher:
    """Publishes versions of one algorithm, each on top of the one before."""

    def __init__(
        self,
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
        self.version: PolicyVersion | None = None

    def recover(self) -> tuple[Fetched, Progress] | None:
        """Load the newest version into the algorithm; None if there is none yet."""
        fetched = self._client.fetch(with_training=True)
        if fetched is None:
            return None
        self._algorithm.load(fetched.snapshot.parameters, fetched.training)
        self.version = fetched.snapshot.version
        return fetched, Progress.from_columns(fetched.training or {}, fetched.report)

    def publish(
        self, report: TrainingReport, progress: Progress, accounts: list[LearnerAccount]
    ) -> Published:
        """Publish what the algorithm holds now. ``accounts`` include what this version has learned from."""
        acting = self._algorithm.acting_parameters()
        training = self._training_state(progress, wanted=self._want_training)
        began = self._clock()
        published = self._client.publish(self.version, acting, training, report, accounts)
        self._metrics.publish_seconds.observe(self._clock() - began)
        if published.want_training and published.run_state.ended:
            # The run's last checkpoint must hold what a resumed run needs: say the same version again.
            training = self._training_state(progress, wanted=True)
            published = self._client.publish(self.version, acting, training, report, accounts)
        self.version = published.version
        self._want_training = published.want_training
        return published

    def _training_state(self, progress: Progress, *, wanted: bool) -> dict[str, Array] | None:
        state = {**self._algorithm.training_state(), **progress.to_columns()}
        small = sum(array.nbytes for array in state.values()) <= _TRAINING_BLOB_ALWAYS_BYTES
        return state if small or wanted else None
