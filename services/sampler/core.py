"""The on-policy sampler's loop: wait for leave, act one fragment, send it to the learner."""

from __future__ import annotations

from collections import deque

from headrace.clients.fragments import FragmentSender
from headrace.types import Fragment
from services.sampler.acting import Acting

_POLL_S = 0.2  # how often a wait looks up to see whether the run has ended


class Sampler:
    """Acts until told to stop.

    Invariant: a fragment is started only with leave (credit, and a permit where the run is paced).
    """

    def __init__(self, acting: Acting, sender: FragmentSender) -> None:
        self._acting = acting
        self._sender = sender
        self._unsettled: deque[tuple[int, int]] = deque()  # sequence, transitions sealed through it

    def run(self) -> None:
        """Produce fragments until told to stop. Raises what environments and peers make fatal."""
        acting = self._acting
        while not acting.stopping():
            ticket = self._sender.acquire(acting_version=lambda: acting.newest_number, timeout_s=_POLL_S)
            self._observe()
            fatal = self._sender.fatal or acting.snapshots.fatal
            if fatal is not None:
                raise fatal
            if ticket is None:
                continue
            acting.metrics.quota_steps.set(ticket.steps)
            fragment = acting.act(permit=ticket.permit, steps=ticket.steps)
            if fragment is not None:
                self._deliver(fragment)

    def leave(self, *, reason: str, deadline_s: float) -> bool:
        """Deliver what is left, then say goodbye. Returns whether all of it is settled."""
        settled = self._sender.drain(reason, deadline_s)
        self._observe()
        self._acting.account.drained()
        return settled

    def _deliver(self, fragment: Fragment) -> None:
        counts = self._acting.rollout.counts
        self._unsettled.append((fragment.id.sequence, fragment.produced_through))
        self._sender.send(fragment)
        self._sender.report(counts.produced, dict(counts.discarded))

    def _observe(self) -> None:
        """Bring account and metrics up to what the connection knows."""
        settled_through, transitions = self._sender.settled_through, None
        while self._unsettled and self._unsettled[0][0] <= settled_through:
            transitions = self._unsettled.popleft()[1]
        if transitions is not None:
            self._acting.account.settled(settled_through, transitions)
        self._acting.metrics.observe_waits(self._sender.wait_seconds, self._sender.unsettled_bytes)
        self._acting.observe_counts()
