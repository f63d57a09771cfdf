"""The sampler's loop: wait for leave, act one fragment with the newest parameters, send it, account for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.accounts import AccountFile
from headrace.clients.fragments import FragmentSender, Ticket
from headrace.nets.actor import Actor
from headrace.rollout import Rollout
from headrace.types import PolicyVersion, Snapshot
from services.sampler.metrics import SamplerMetrics

_POLL_S = 0.2  # how often a wait looks up to see whether the run has ended


class SnapshotSource(Protocol):
    """Where parameters come from; :class:`headrace.clients.parameters.SnapshotWatcher` is one."""

    def newest(self) -> Snapshot | None:
        """Newest verified snapshot, None before the first."""
        ...

    def wait_newer(self, than: PolicyVersion | None, timeout_s: float) -> Snapshot | None:
        """A snapshot newer than ``than``, or None after ``timeout_s`` seconds."""
        ...


class Sampler:
    """Acts until told to stop.

    Invariants: parameters change only between fragments and only to a newer version; a fragment is
    started only with leave (credit, and a permit where the run is paced); after every step the account
    file holds the true counts.
    """

    def __init__(
        self,
        *,
        rollout: Rollout,
        actor: Actor,
        snapshots: SnapshotSource,
        sender: FragmentSender,
        account: AccountFile,
        metrics: SamplerMetrics,
        stopping: Callable[[], bool],
    ) -> None:
        self._rollout = rollout
        self._actor = actor
        self._snapshots = snapshots
        self._sender = sender
        self._account = account
        self._metrics = metrics
        self._stopping = stopping
        self._loaded: PolicyVersion | None = None

    def run(self) -> None:
        """Produce fragments until ``stopping`` says so. Raises what environments and peers make fatal."""
        while not self._stopping():
            ticket = self._sender.acquire(acting_version=self._newest_number, timeout_s=_POLL_S)
            self._metrics.observe_waits(self._sender.wait_seconds)
            if self._sender.fatal is not None:
                raise self._sender.fatal
            if ticket is None or not self._load_newest(ticket):
                continue
            assert self._loaded is not None
            fragment = self._rollout.run(self._loaded, permit=ticket.permit, stop=self._stopping)
            self.record()
            if fragment is None:
                continue
            self._metrics.observe_fragment(fragment, self._lag())
            self._sender.send(fragment)
            self._account.sealed_through(fragment.id.sequence)
            self._sender.report(self._rollout.counts.produced, dict(self._rollout.counts.discarded))

    def record(self) -> None:
        """Write the counts where they survive a kill."""
        counts = self._rollout.counts
        self._account.update(produced=counts.produced, sealed=counts.sealed, discarded=counts.discarded)

    def _newest_number(self) -> int:
        snapshot = self._snapshots.newest()
        return -1 if snapshot is None else snapshot.version.number

    def _load_newest(self, ticket: Ticket) -> bool:
        snapshot = self._snapshots.newest()
        if snapshot is None or snapshot.version.number < ticket.min_version:
            return False
        if self._loaded is None or snapshot.version > self._loaded:
            self._actor.load(snapshot.parameters)
            self._loaded = snapshot.version
        return True

    def _lag(self) -> int:
        newest = self._snapshots.newest()
        return 0 if newest is None or self._loaded is None else self._loaded.lag_behind(newest.version)
