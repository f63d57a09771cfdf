"""What became of each fragment of one sampler incarnation, settled in order of sequence."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.flow.ledger import MISSING
from headrace.types import LearnerAccount, SamplerIdentity


@dataclass(slots=True, eq=False)
class Entry:
    """A fragment from its arrival to its settlement.

    ``missing``: transitions between it and the one before that never came. ``dropped``: why it will
    not be trained, empty while it may be.
    """

    sequence: int
    num_transitions: int
    nbytes: int
    missing: int = 0
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class SamplerReport:
    """Cumulative counts of a sampler, in transitions; ``backlog_bytes``: sealed, but no credit to send it."""

    produced: int
    discarded: Mapping[str, int]
    backlog_bytes: int


@dataclass(slots=True, eq=False)
class IncarnationBook:
    """The learner's account of one incarnation, and what is not settled yet.

    Invariants: sequences are received once, in order; they are settled once, in order;
    ``trained + dropped == transitions sealed by the sampler up to settled_through`` (what an earlier
    learner settled without a version to say so is dropped with the reason ``missing``).
    """

    sampler: SamplerIdentity
    settled_through: int = -1
    trained: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    received_through: int = -1
    produced_through: int = 0
    newest_version: int = 0
    dropped_bytes: int = 0  # of entries that are dropped and not settled
    reported: SamplerReport | None = None
    _pending: deque[Entry] = field(default_factory=deque)  # in order of sequence

    @classmethod
    def restored(cls, account: LearnerAccount) -> IncarnationBook:
        """Go on from the account of a published version."""
        dropped = Counter(account.dropped)
        return cls(
            sampler=account.sampler,
            settled_through=account.settled_through,
            trained=account.trained,
            dropped=dropped,
            received_through=account.settled_through,
            produced_through=account.trained + dropped.total(),
        )

    def receive(
        self, sequence: int, num_transitions: int, nbytes: int, produced_through: int | None = None
    ) -> Entry:
        """Enter a new fragment.

        ``produced_through`` is the sampler's count up to and with it, None if it can't be trusted.
        """
        expected = self.produced_through + num_transitions
        missing = 0 if produced_through is None else max(0, produced_through - expected)
        entry = Entry(sequence, num_transitions, nbytes, missing)
        self._pending.append(entry)
        self.received_through = sequence
        self.produced_through = expected + missing
        return entry

    def drop(self, entry: Entry, reason: str) -> None:
        """Decide that an entry will not be trained."""
        entry.dropped = reason
        self.dropped_bytes += entry.nbytes

    def account(self, trained: frozenset[Entry] = frozenset()) -> LearnerAccount:
        """The account as it is once the entries in ``trained`` are part of a published version."""
        settled_through, count = self.settled_through, self.trained
        dropped = Counter(self.dropped)
        for entry in self._pending:
            if entry in trained:
                count += entry.num_transitions
            elif entry.dropped:
                dropped[entry.dropped] += entry.num_transitions
            else:
                break
            if entry.missing:
                dropped[MISSING] += entry.missing
            settled_through = entry.sequence
        return LearnerAccount(self.sampler, settled_through, count, dict(dropped))

    def settle(self, account: LearnerAccount) -> bool:
        """Make an earlier result of :meth:`account` the truth. Returns whether anything was settled by it."""
        if account.settled_through <= self.settled_through:
            return False
        while self._pending and self._pending[0].sequence <= account.settled_through:
            entry = self._pending.popleft()
            if entry.dropped:
                self.dropped_bytes -= entry.nbytes
        self.settled_through = account.settled_through
        self.trained = account.trained
        self.dropped = Counter(account.dropped)
        return True
