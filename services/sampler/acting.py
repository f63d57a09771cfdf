"""What every sampler does between two waits: load parameters, act one fragment, keep the account."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.accounts import AccountFile
from headrace.errors import HeadraceError
from headrace.nets.actor import Actor
from headrace.rollout import Rollout
from headrace.types import Fragment, PolicyVersion, Snapshot
from services.sampler.metrics import SamplerMetrics


class SnapshotSource(Protocol):
    """Where parameters come from; :class:`headrace.clients.parameters.SnapshotWatcher` is one."""

    def newest(self) -> Snapshot | None:
        """Newest verified snapshot, None before the first."""
        ...

    def wait_newer(self, than: PolicyVersion | None, timeout_s: float) -> Snapshot | None:
        """A snapshot newer than ``than``, or None after ``timeout_s`` seconds."""
        ...

    @property
    def fatal(self) -> HeadraceError | None:
        """Why there will never be another one; None while there may be."""
        ...


class Acting:
    """One rollout with the newest parameters and an account that is true after every step.

    Invariant: parameters change only between fragments and only to a newer version.
    """

    def __init__(
        self,
        *,
        rollout: Rollout,
        actor: Actor,
        snapshots: SnapshotSource,
        account: AccountFile,
        metrics: SamplerMetrics,
        restarts: Callable[[], Mapping[str, int]],
        stopping: Callable[[], bool],
    ) -> None:
        """``restarts`` counts rebuilt environments by reason; ``stopping`` is asked before every step."""
        self.rollout = rollout
        self.snapshots = snapshots
        self.account = account
        self.metrics = metrics
        self.stopping = stopping
        self._actor = actor
        self._restarts = restarts
        self._loaded: PolicyVersion | None = None

    @property
    def newest_number(self) -> int:
        """Number of the newest version that could act; -1: none yet."""
        snapshot = self.snapshots.newest()
        return -1 if snapshot is None else snapshot.version.number

    def act(self, *, permit: int = -1, steps: int = 0) -> Fragment | None:
        """One fragment by the newest parameters, entered in account and metrics; None if it holds nothing.

        ``steps`` per lane are asked for; 0: all that fit.
        """
        fragment = self.rollout.run(self._load_newest(), permit=permit, steps=steps, stop=self.stopping)
        if fragment is not None:
            self.record()
            self.account.sealed_through(fragment.id.sequence)
            self.metrics.observe_fragment(fragment, self._lag())
        return fragment

    def on_step(self, seconds: float) -> None:
        """After each vector step, which took ``seconds``: write the counts where they survive a kill."""
        self.record()
        self.metrics.env_step_seconds.observe(seconds)

    def record(self) -> None:
        """Write the counts into the account."""
        counts = self.rollout.counts
        self.account.update(produced=counts.produced, sealed=counts.sealed, discarded=counts.discarded)

    def observe_counts(self) -> None:
        """Bring the metrics up to the counts."""
        self.metrics.observe_counts(self.rollout.counts, self._restarts())

    def _load_newest(self) -> PolicyVersion:
        snapshot = self.snapshots.newest()
        if snapshot is not None and (self._loaded is None or snapshot.version > self._loaded):
            self._actor.load(snapshot.parameters)
            self._loaded = snapshot.version
        if self._loaded is None:
            raise RuntimeError("asked to act before any parameters had arrived")
        return self._loaded

    def _lag(self) -> int:
        newest = self.snapshots.newest()
        return 0 if newest is None or self._loaded is None else self._loaded.lag_behind(newest.version)
