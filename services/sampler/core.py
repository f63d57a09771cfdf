"""The sampler's loop: wait for leave, act one fragment with the newest parameters, send it, account."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from headrace.accounts import AccountFile
from headrace.clients.fragments import FragmentSender
from headrace.errors import HeadraceError
from headrace.nets.actor import Actor
from headrace.rollout import Rollout
from headrace.types import Fragment, PolicyVersion, Snapshot
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

    @property
    def fatal(self) -> HeadraceError | None:
        """Why there will never be another one; None while there may be."""
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
        restarts: Callable[[], Mapping[str, int]],
        stopping: Callable[[], bool],
    ) -> None:
        """``restarts`` counts rebuilt environments by reason; ``stopping`` is asked before every step."""
        self._rollout = rollout
        self._actor = actor
        self._snapshots = snapshots
        self._sender = sender
        self._account = account
        self._metrics = metrics
        self._restarts = restarts
        self._stopping = stopping
        self._unsettled: deque[tuple[int, int]] = deque()  # sequence, transitions sealed through it
        self._loaded: PolicyVersion | None = None

    def run(self) -> None:
        """Produce fragments until ``stopping`` says so. Raises what environments and peers make fatal."""
        while not self._stopping():
            ticket = self._sender.acquire(acting_version=self._newest_number, timeout_s=_POLL_S)
            self._observe()
            fatal = self._sender.fatal or self._snapshots.fatal
            if fatal is not None:
                raise fatal
            if ticket is None:
                continue
            version = self._load_newest()
            fragment = self._rollout.run(version, permit=ticket.permit, stop=self._stopping)
            if fragment is not None:
                self._deliver(fragment)

    def on_step(self, seconds: float) -> None:
        """After each vector step, which took ``seconds``: write the counts where they survive a kill."""
        self._record()
        self._metrics.env_step_seconds.observe(seconds)

    def leave(self, *, reason: str, deadline_s: float) -> bool:
        """Deliver what is left, then say goodbye. Returns whether all of it is settled."""
        settled = self._sender.drain(reason, deadline_s)
        self._observe()
        self._account.drained()
        return settled

    def _deliver(self, fragment: Fragment) -> None:
        self._record()
        self._account.sealed_through(fragment.id.sequence)
        self._unsettled.append((fragment.id.sequence, fragment.produced_through))
        self._metrics.observe_fragment(fragment, self._lag())
        self._sender.send(fragment)
        self._sender.report(self._rollout.counts.produced, dict(self._rollout.counts.discarded))

    def _record(self) -> None:
        counts = self._rollout.counts
        self._account.update(produced=counts.produced, sealed=counts.sealed, discarded=counts.discarded)

    def _observe(self) -> None:
        """Bring account and metrics up to what the connection knows."""
        settled_through, transitions = self._sender.settled_through, None
        while self._unsettled and self._unsettled[0][0] <= settled_through:
            transitions = self._unsettled.popleft()[1]
        if transitions is not None:
            self._account.settled(settled_through, transitions)
        self._metrics.observe_waits(self._sender.wait_seconds, self._sender.unsettled_bytes)
        self._metrics.observe_counts(self._rollout.counts, self._restarts())

    def _newest_number(self) -> int:
        snapshot = self._snapshots.newest()
        return -1 if snapshot is None else snapshot.version.number

    def _load_newest(self) -> PolicyVersion:
        """Load the newest parameters if they are new; returns the version the actor now holds."""
        snapshot = self._snapshots.newest()
        if snapshot is not None and (self._loaded is None or snapshot.version > self._loaded):
            self._actor.load(snapshot.parameters)
            self._loaded = snapshot.version
        if self._loaded is None:
            raise RuntimeError("a ticket was issued before any parameters had arrived")
        return self._loaded

    def _lag(self) -> int:
        newest = self._snapshots.newest()
        return 0 if newest is None or self._loaded is None else self._loaded.lag_behind(newest.version)
