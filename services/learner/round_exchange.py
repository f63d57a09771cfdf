"""Rounds: what a learner has learned becomes part of a version together with the work of others."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.clients.parameters import Fetched, PublishClient
from headrace.clients.rounds import RoundClient
from headrace.config.choices import exchanges_gradients, updates_per_exchange
from headrace.config.sections import Config
from headrace.errors import FencedError
from headrace.events import OnEvent
from headrace.rl.gradient_sum import GradientSum
from headrace.rl.random_state import RNG_STATE, pack_rng
from headrace.rl.shared import Shared
from headrace.sync.aggregation import FlatArray
from headrace.sync.contribution import (
    DELTA,
    MAX_RETURNS,
    Contribution,
    GroupRequest,
    RoundResult,
    VectorKind,
    Work,
)
from headrace.sync.layout import Layout
from headrace.sync.staleness import INVALID, STALE
from headrace.types import Array, LearnerAccount, PolicyVersion
from services.learner.exchanging import (
    INVALID_CONTRIBUTION,
    STALE_CONTRIBUTION,
    Exchanged,
    Learned,
    Trainable,
)
from services.learner.metrics import LearnerMetrics
from services.learner.progress import Progress

_POLL_S = 0.2
_SPAWN_KEY = 2**28
DROPPED = {STALE: STALE_CONTRIBUTION, INVALID: INVALID_CONTRIBUTION}
"""Outcomes of contributions that are part of no version, and why the transitions behind them are dropped."""


class SharingTrainable(Trainable, Protocol):
    """An algorithm that says what of it all learners of a run hold in common."""

    @property
    def shared(self) -> Shared:
        """What all learners of a run hold in common."""
        ...


@dataclass(frozen=True, slots=True)
class Connections:
    """How a learner reaches the parameter server: for rounds once it knows what it shares, else directly."""

    publish: PublishClient
    join: Callable[[Layout, PolicyVersion], RoundClient]


class RoundExchange:
    """One learner's side of the rounds.

    Invariant: after every exchange the algorithm holds exactly the parameters and running moments of
    ``version``, also where its own work was dropped.
    """

    def __init__(
        self,
        config: Config,
        index: int,
        algorithm: SharingTrainable,
        connections: Connections,
        metrics: LearnerMetrics,
        *,
        stopping: Callable[[], bool],
        on_event: OnEvent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``index`` is this learner's number among those of the run."""
        self._config = config
        self._algorithm = algorithm
        self._connections = connections
        self._metrics = metrics
        self._stopping = stopping
        self._on_event = on_event
        self._clock = clock
        self._rng = np.random.Generator(
            np.random.PCG64(np.random.SeedSequence(config.run.seed, spawn_key=(_SPAWN_KEY, index)))
        )
        self._decorrelate = index > 0
        self._gradients: GradientSum | None = None
        if exchanges_gradients(config):
            self._gradients = GradientSum()
            algorithm.shared.join(self._gradients)
        self._client: RoundClient | None = None
        self._start, self._start_moments = self._held()
        self._sequence = 0
        self._want_training = False
        self.updates = updates_per_exchange(config)
        self.wait_seconds = 0.0
        """Seconds spent waiting for rounds to close, and for groups to come together."""
        self._asked_at, self._waited_before = (
            clock(),
            0.0,
        )  # when and with what wait the last work was brought
        self.progress = Progress()
        self.version: PolicyVersion | None = None

    def recover(self) -> tuple[LearnerAccount, ...]:
        """Join the rounds from the newest version, or from the initial one, which is then published.

        The accounts are asked for once this learner has joined: nothing that an earlier process of it has
        handed in can be taken in any more.
        """
        fetched = self._fetch_or_publish()
        shared = self._algorithm.shared
        self._client = self._connections.join(shared.layout, fetched.snapshot.version)
        self._client.start()
        try:
            welcome = self._await_welcome()
            if welcome is not None:
                self._go_on_from(welcome)
        except FencedError as error:  # versions were lost since they were fetched
            self._publish_own(str(error))
        newest = self._connections.publish.fetch(with_training=False)
        return fetched.accounts if newest is None else newest.accounts

    def exchange(self, work: Callable[[], Learned]) -> Exchanged | None:
        """Learn, bring it to a round, and go on from the version that comes of it."""
        try:
            result = self._ask(self._contribution(work()))
        except FencedError as error:
            return self._publish_own(str(error))
        return None if result is None else self._settle(result)

    def close(self) -> None:
        """Leave the rounds."""
        if self._client is not None:
            self._client.close()

    def _ask(self, request: Contribution | GroupRequest) -> RoundResult | None:
        """What becomes of a request; None once this process is to stop. FencedError: publish first."""
        began = self._clock()
        try:
            result = self._joined.exchange(request, timeout_s=_POLL_S)
            while result is None and not self._stopping():
                result = self._joined.exchange(request, timeout_s=_POLL_S)
            return result
        finally:
            self.wait_seconds += self._clock() - began

    def _settle(self, result: RoundResult) -> Exchanged:
        """Go on from the version that a contribution has led to."""
        self._go_on_from(result)
        dropped = DROPPED.get(result.outcome, "")
        self._metrics.contributions.labels(outcome=result.outcome).inc()
        if dropped:
            self._on_event("contribution_dropped", reason=result.detail, sequence=self._sequence)
        return Exchanged(result.version, result.status, dropped)

    def _fetch_or_publish(self) -> Fetched:
        """The newest version, loaded; where there is none the first learner to ask makes it."""
        publish = self._connections.publish
        while True:
            fetched = publish.fetch(with_training=True)
            if fetched is not None:
                self._load(fetched)
                return fetched
            with suppress(FencedError):  # another learner was faster
                self._publish_held(None)

    def _load(self, fetched: Fetched) -> None:
        training = fetched.training
        if training is not None and self._decorrelate:
            training = {**training, RNG_STATE: pack_rng(self._rng)}
        self._algorithm.load(fetched.snapshot.parameters, training)
        self._start, self._start_moments = self._held()
        self.version = fetched.snapshot.version
        self.progress = Progress.from_columns(fetched.training or {}, fetched.report)

    def _contribution(self, learned: Learned) -> Contribution:
        assert self.version is not None, "recover comes first"
        shared = self._algorithm.shared
        self._sequence += 1
        kind, vector, weight = self._vector(shared, learned.weight)
        moments = shared.moments.columns()
        acting = self._algorithm.acting_parameters()
        own = {name: acting[name] for name in acting if name not in shared.tensors and name not in moments}
        fresh = {DELTA + name: array for name, array in shared.moments.take_fresh().items()}
        training: dict[str, Array] | None = None
        if self._want_training:
            training = {**self._algorithm.training_state(), **self.progress.to_columns()}
        return Contribution(
            sequence=self._sequence,
            base=self.version,
            kind=kind,
            vector=vector,
            num_samples=weight,
            learning_rate=learned.losses.get("learning_rate", 0.0),
            state={**own, **fresh},
            training=training,
            work=Work(
                env_steps=learned.env_steps,
                samples_trained=learned.samples,
                episodes=learned.episodes,
                returns=learned.returns[-MAX_RETURNS:],
                counts_whole_run=learned.counts_whole_run,
                metrics=learned.losses,
                policy_lags=learned.lags,
                idle_share=self._idle_share(),
            ),
            accounts=learned.accounts,
            values_sha256=self._values_sha256(vector),
        )

    def _idle_share(self) -> float:
        """Share of the time since the last contribution that went into waiting for its round."""
        now, waited = self._clock(), self.wait_seconds
        elapsed, idle = now - self._asked_at, waited - self._waited_before
        self._asked_at, self._waited_before = now, waited
        return min(1.0, idle / elapsed) if elapsed > 0.0 else 0.0

    def _values_sha256(self, vector: FlatArray) -> str:
        """The hash of the values that this learner holds, where others may hold the same; else empty."""
        return ""

    def _vector(self, shared: Shared, weight: int) -> tuple[VectorKind, FlatArray, int]:
        if self._gradients is not None:
            return ("gradient", *self._gradients.take(shared.layout.size))
        values = shared.values()
        if self._config.sync.transport_dtype == "float32":
            return "values", values, weight
        return "change", values - self._start, weight

    def _go_on_from(self, result: RoundResult) -> None:
        """Hold exactly ``result.version``."""
        if result.values is not None:
            self._start = result.values
        if result.state is not None:
            self._start_moments = {name: result.state[name] for name in self._start_moments}
        self._restore()
        self.version = result.version
        self._want_training = result.want_training
        self.updates = updates_per_exchange(self._config, result.local_steps)
        self.progress.go_on_from(result.report)

    def _restore(self) -> None:
        """Hold the parameters and moments of :attr:`version`, whatever was learned since."""
        shared = self._algorithm.shared
        shared.load_values(self._start)
        shared.load_moments(self._start_moments)

    def _held(self) -> tuple[FlatArray, dict[str, Array]]:
        shared = self._algorithm.shared
        return shared.values(), shared.moments.columns()

    def _publish_own(self, reason: str) -> Exchanged | None:
        """The parameter server has lost what this learner still holds: publish that, without its new work."""
        self._on_event("version_republished", reason=reason, version=str(self.version))
        self._restore()
        version = self.version
        with suppress(FencedError):  # another learner was faster: its version comes with the welcome
            version = self._publish_held(version)
        assert version is not None, "recover comes first"
        self._joined.hold(version)
        welcome = self._await_welcome()
        if welcome is None:
            return None
        self._go_on_from(welcome)
        return Exchanged(welcome.version, welcome.status, STALE_CONTRIBUTION)

    def _publish_held(self, base: PolicyVersion | None) -> PolicyVersion:
        """Publish what the algorithm holds as it is. FencedError: there is a newer version."""
        acting = self._algorithm.acting_parameters()
        training = {**self._algorithm.training_state(), **self.progress.to_columns()}
        return self._connections.publish.publish(
            base, acting, training, self.progress.report({}, ()), ()
        ).version

    def _await_welcome(self) -> RoundResult | None:
        """The answer to this learner's hello; None once this process is to stop."""
        while not self._stopping():
            welcome = self._joined.join(timeout_s=_POLL_S)
            if welcome is not None:
                return welcome
        return None

    @property
    def _joined(self) -> RoundClient:
        assert self._client is not None, "recover comes first"
        return self._client
