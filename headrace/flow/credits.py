"""Credit as reserved buffer space: what was granted always fits, so overflow can't happen."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import ConfigurationError, InvalidDataError
from headrace.flow.watermarks import Watermarks

_RESERVE = 8  # this part of the capacity is promised only as somebody's leave to send one fragment


class CreditError(InvalidDataError):
    """A sender sent more than it was granted, or asks for credit in an impossible unit."""


@dataclass(slots=True)
class _Account:
    """One stream's side of the pool. All in payload bytes; the first two are cumulative."""

    unit: int
    granted: int = 0
    arrived: int = 0
    buffered: int = 0

    @property
    def outstanding(self) -> int:
        return self.granted - self.arrived

    @property
    def share(self) -> int:
        return self.outstanding + self.buffered


class CreditPool:
    """Divides one buffer of ``capacity_bytes`` among streams, in units of one fragment.

    Invariants: ``buffered + outstanding <= capacity`` (outstanding = granted and not arrived yet);
    a grant is never taken back except by :meth:`leave`; from the high watermark on, nothing is
    granted until the buffer has drained below the release line. Not thread-safe.
    """

    def __init__(self, capacity_bytes: int, watermarks: Watermarks) -> None:
        self.capacity = capacity_bytes
        self.watermarks = watermarks
        self.buffered = 0
        self.outstanding = 0
        self._reserve = capacity_bytes // _RESERVE
        self._streams: dict[int, _Account] = {}

    @property
    def fill(self) -> float:
        """Share of the capacity that holds fragments, 0 to 1."""
        return self.buffered / self.capacity

    @property
    def room(self) -> int:
        """Bytes that are neither held nor promised."""
        return self.capacity - self.buffered - self.outstanding

    def join(self, stream: int, unit_bytes: int) -> None:
        """Admit a stream whose fragments have ``unit_bytes`` at most. ConfigurationError if one can't fit."""
        if unit_bytes < 1:
            raise CreditError(f"a fragment of {unit_bytes} bytes")
        if unit_bytes > self.capacity:
            raise ConfigurationError(
                [f"stream.capacity_bytes: {self.capacity} bytes can't hold a fragment of {unit_bytes} bytes"]
            )
        self._streams[stream] = _Account(unit_bytes)

    def leave(self, stream: int) -> None:
        """Take back what the stream was granted and has not used. What it sent stays buffered."""
        account = self._streams.pop(stream)
        self.outstanding -= account.outstanding

    def total(self, stream: int) -> int:
        """Bytes granted to the stream since it joined."""
        return self._streams[stream].granted

    def available(self, stream: int) -> int:
        """Bytes the stream may still send."""
        return self._streams[stream].outstanding

    def can_grant(self, num_bytes: int) -> bool:
        """Whether ``num_bytes`` more may be promised now."""
        return not self.watermarks.throttled and num_bytes <= self.room

    def grant(self, stream: int, num_bytes: int) -> bool:
        """Promise ``num_bytes`` to the stream if there is room; all or nothing."""
        if not self.can_grant(num_bytes):
            return False
        self._streams[stream].granted += num_bytes
        self.outstanding += num_bytes
        return True

    def top_up(self, stream: int, num_bytes: int) -> bool:
        """Promise so much more that the stream may send ``num_bytes``. Returns whether it may now."""
        missing = num_bytes - self.available(stream)
        return missing <= 0 or self.grant(stream, missing)

    def share_out(self, streams: Iterable[int]) -> None:
        """Grant unit by unit, always to the stream that holds least, until nobody may have more.

        Leave to send one fragment comes before everything else. Beyond that a stream holds at most
        ``capacity / (streams + 1)``, and an eighth of the buffer stays unpromised: a newcomer finds
        room even where everyone else has gone silent.
        """
        waiting = [(self._streams[stream].share, stream) for stream in streams]
        heapq.heapify(waiting)
        for _, stream in sorted(waiting):
            self.top_up(stream, self._streams[stream].unit)
        limit = self.capacity // (len(self._streams) + 1)
        while waiting and not self.watermarks.throttled:
            _, stream = heapq.heappop(waiting)
            account = self._streams[stream]
            fair = account.share + account.unit <= limit and self.room - account.unit >= self._reserve
            if fair and self.grant(stream, account.unit):
                heapq.heappush(waiting, (account.share, stream))

    def arrived(self, stream: int, num_bytes: int) -> None:
        """A fragment came in and is held now. CreditError if it was not covered by a grant."""
        account = self._streams[stream]
        if num_bytes > account.outstanding:
            raise CreditError(f"{num_bytes} bytes came in on a credit of {account.outstanding} bytes")
        account.arrived += num_bytes
        account.buffered += num_bytes
        self.outstanding -= num_bytes
        self.buffered += num_bytes
        self.watermarks.update(self.fill)

    def release(self, stream: int, num_bytes: int) -> None:
        """Held bytes are gone (trained or dropped). The stream may have left meanwhile."""
        account = self._streams.get(stream)
        if account is not None:
            account.buffered -= num_bytes
        self.buffered -= num_bytes
        self.watermarks.update(self.fill)
