"""What a sender of fragments holds and may do: its resend buffer, its credit, its permits. Pure state."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from headrace.flow.messages import Grant
from headrace.types import Fragment


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to act one fragment, with a policy of version number ``min_version`` or newer.

    ``permit`` goes onto the fragment (-1 where the run is not paced). ``steps`` per lane are asked
    for; 0: all that fit.
    """

    permit: int
    min_version: int
    steps: int = 0


class Outbox:
    """Fragments from sealed to settled, and the leave to make more.

    Invariants: fragments are kept, sent and forgotten in order of sequence; on one stream, bytes sent
    never exceed the bytes granted on it; a ticket is given only while one full fragment more than
    everything unsent fits the credit left, so what is held stays bounded by the receiver's grants.
    Credit and permits belong to a stream and die with it. Not thread-safe: the owner locks.

    Bytes are those of the arrays (``Fragment.nbytes``) whatever the codec makes of them: that is
    what both ends hold in memory.
    """

    def __init__(self, fragment_bytes: int, *, gaps: bool = False) -> None:
        self._fragment_bytes = fragment_bytes
        self._gaps = gaps
        self._unsettled: deque[tuple[Fragment, int]] = deque()
        self._unsent = 0  # how many of the last ones in _unsettled are not sent on this stream
        self._unsent_bytes = 0
        self._permits: list[tuple[int, int]] = []  # heap of (index, min_version)
        self._started = False
        self.open = False
        self.paced = False
        self.granted_bytes = 0
        self.sent_bytes = 0
        self.settled_through = -1
        self.last_sequence = -1
        self.unsettled_bytes = 0
        self.throttled_by = ""
        self.quota_steps = 0

    @property
    def next_sequence(self) -> int:
        """Sequence of the first fragment that is not even started."""
        return self.last_sequence + 1 + self._started

    @property
    def unsent_bytes(self) -> int:
        """Bytes sealed but not sent on this stream."""
        return self._unsent_bytes

    @property
    def all_sent(self) -> bool:
        """Whether everything sealed has gone out on this stream."""
        return self._unsent == 0

    # The stream.

    def opened(self, settled_through: int, paced: bool) -> None:
        """A receiver said welcome: forget what it has settled; all else is to be sent again, in order."""
        self.open = True
        self.paced = paced
        self.granted_bytes = self.sent_bytes = 0
        self._permits.clear()
        self.settle(settled_through)
        self._unsent = len(self._unsettled)
        self._unsent_bytes = self.unsettled_bytes

    def lost(self) -> None:
        """The stream is gone, and its credit and permits with it."""
        self.open = False
        self._permits.clear()
        self.granted_bytes = self.sent_bytes = 0
        self._unsent = len(self._unsettled)
        self._unsent_bytes = self.unsettled_bytes

    def grant(self, grant: Grant) -> None:
        """Take in credit (cumulative) and permits."""
        self.granted_bytes = max(self.granted_bytes, grant.total_bytes)
        self.throttled_by = grant.throttled_by
        self.quota_steps = grant.quota_steps
        for permit in grant.permits:
            heapq.heappush(self._permits, (permit.index, permit.min_version))

    def settle(self, through: int) -> None:
        """Forget every fragment up to sequence ``through``."""
        self.settled_through = max(self.settled_through, through)
        while self._unsettled and self._unsettled[0][0].id.sequence <= self.settled_through:
            _, nbytes = self._unsettled.popleft()
            self.unsettled_bytes -= nbytes
            if self._unsent > len(self._unsettled):
                self._unsent -= 1
                self._unsent_bytes -= nbytes

    def take_sendable(self, max_bytes: int) -> list[Fragment]:
        """The next fragments that credit allows, together about ``max_bytes`` (at least one, if any)."""
        taken: list[Fragment] = []
        total = 0
        while self.open and self._unsent:
            fragment, nbytes = self._unsettled[-self._unsent]
            if self.sent_bytes + nbytes > self.granted_bytes or (taken and total + nbytes > max_bytes):
                break
            taken.append(fragment)
            total += nbytes
            self.sent_bytes += nbytes
            self._unsent -= 1
            self._unsent_bytes -= nbytes
        return taken

    # The producer.

    def blocked_by(self, acting_version: int) -> str:
        """Why no fragment may be started by version number ``acting_version`` (-1: no parameters yet).

        "connection", "permit", "credit", "parameters", or "" if one may.
        """
        if not self.open:
            return "connection"
        if self.paced and not self._permits:
            return "permit"
        if self.sent_bytes + self._unsent_bytes + self._fragment_bytes > self.granted_bytes:
            return "credit"
        if acting_version < (self._permits[0][1] if self.paced else 0):
            return "parameters"
        return ""

    def take_ticket(self) -> Ticket:
        """Start a fragment; call it only while :meth:`blocked_by` gives ""."""
        self._started = True
        if not self.paced:
            return Ticket(-1, 0, self.quota_steps)
        return Ticket(*heapq.heappop(self._permits), self.quota_steps)

    def add(self, fragment: Fragment) -> None:
        """Hold a sealed fragment. ValueError unless it follows the one before (with ``gaps``: is later)."""
        missing = fragment.id.sequence - self.last_sequence - 1
        if missing < 0 or (missing and not self._gaps):
            raise ValueError(f"fragment {fragment.id} after sequence {self.last_sequence}")
        nbytes = fragment.nbytes
        self._unsettled.append((fragment, nbytes))
        self.unsettled_bytes += nbytes
        self._unsent += 1
        self._unsent_bytes += nbytes
        self.last_sequence = fragment.id.sequence
        self._started = False

    def abandon(self) -> None:
        """The fragment that was started will never be sealed."""
        self._started = False
