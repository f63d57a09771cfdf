"""What each stream may send: credit and permits, given out whenever something has changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from headrace.flow.admission import Admission
from headrace.flow.credits import CreditPool
from headrace.flow.leveling import Leveling, Quota
from headrace.flow.messages import Grant, Permit, ToSampler
from services.learner.settlement import IncarnationBook

HIGH_WATERMARK = "high_watermark"
POLICY_LAG = "policy_lag"

# Fragments for which a stream may have unused leave: one in the making, and one more so that the sampler
# needn't wait for leave; of small fragments as many as hide a round trip, but a small part of the buffer.
_MIN_AHEAD = 2
_AHEAD_BYTES = 2**18
_AHEAD_SHARE = 64


@dataclass(slots=True, eq=False)
class Stream:
    """One open stream. ``known_through``: highest sequence that was known here when it was opened."""

    token: int
    book: IncarnationBook
    unit_bytes: int
    send: Callable[[ToSampler], None]
    known_through: int
    resent_through: int = -1
    backlog_bytes: int = 0
    leaving: bool = False
    granted_bytes: int = 0
    throttled_by: str = ""
    quota_steps: int = 0

    @property
    def resends(self) -> int:
        """Fragments that will come again although they are known here: what is settled will not."""
        return max(0, self.known_through - max(self.resent_through, self.book.settled_through))


class Granting:
    """Gives out credit and permits. Not thread-safe; the intake's lock is around it.

    Paced: a permit is given only together with the bytes of its fragment, so whoever has leave to
    start can also send; what a stream has started or must resend is covered first. Unpaced: bytes
    only, in fair shares. With ``leveling`` each grant says how long a stream's next fragments are to be.
    """

    def __init__(
        self,
        credits: CreditPool,
        admission: Admission,
        *,
        paced: bool,
        leveling: Leveling | None = None,
    ) -> None:
        self._credits = credits
        self._admission = admission
        self._paced = paced
        self._leveling = leveling
        self.streams: dict[int, Stream] = {}

    def open(self, stream: Stream, *, started: int) -> None:
        """Admit a stream that has started ``started`` fragments which are not known here."""
        self._credits.join(stream.token, stream.unit_bytes)
        ahead_bytes = min(_AHEAD_BYTES, self._credits.capacity // _AHEAD_SHARE)
        self._admission.join(
            stream.token,
            ahead=max(_MIN_AHEAD, ahead_bytes // stream.unit_bytes),
            started=started if self._paced else 0,
            seen_version=stream.book.newest_version,
        )
        if self._leveling is not None:
            self._leveling.join(stream.token)
        self.streams[stream.token] = stream

    def close(self, stream: Stream) -> None:
        """Take back what the stream has not used."""
        del self.streams[stream.token]
        self._credits.leave(stream.token)
        self._admission.leave(stream.token)
        if self._leveling is not None:
            self._leveling.leave(stream.token)

    def observe_speed(self, token: int, steps_per_s: float) -> Quota | None:
        """A fragment of the stream was made at this speed. Returns its new quota if it has one."""
        return None if self._leveling is None else self._leveling.observe(token, steps_per_s)

    def pump(self, *, hold_permits: bool, only: int | None = None) -> None:
        """Grant what can be granted now and tell the streams whose grant has changed.

        ``only``: nothing was freed, this stream alone has a fragment less to send.
        """
        tokens = list(self.streams) if only is None else [only]
        permits: dict[int, list[Permit]] = defaultdict(list)
        if self._paced:
            for token in tokens:
                self._cover(self.streams[token])
            blocked_by = POLICY_LAG if hold_permits else self._issue(tokens, permits)
        else:
            self._share_out(only)
            blocked_by = HIGH_WATERMARK
        for token in tokens:
            self._tell(self.streams[token], tuple(permits[token]), blocked_by)

    def _share_out(self, only: int | None) -> None:
        if only is None:
            self._credits.share_out(self.streams)
        else:
            self._credits.top_up(only, self.streams[only].unit_bytes)

    def unable(self) -> set[int]:
        """Streams that have something due to send and no credit for it: waiting for them is no use."""
        return {
            token
            for token, stream in self.streams.items()
            if self._admission.outstanding(token) and self._credits.available(token) < stream.unit_bytes
        }

    def _cover(self, stream: Stream) -> None:
        """Credit for what the stream already has leave to send, a little at a time.

        Fragments are often smaller than their unit; what is left of the credit stays with the stream.
        """
        fragments = min(_MIN_AHEAD, self._admission.outstanding(stream.token) + stream.resends)
        for count in range(1, fragments + 1):
            self._credits.top_up(stream.token, count * stream.unit_bytes)
        self._credits.top_up(stream.token, stream.backlog_bytes)

    def _issue(self, tokens: list[int], permits: dict[int, list[Permit]]) -> str:
        """Permits while the bound and the buffer allow; returns what stops it ("": everyone has enough)."""
        streams = self.streams
        staying = [token for token in tokens if not streams[token].leaving and not streams[token].resends]
        while candidates := self._admission.by_need(staying):
            if not self._admission.is_open():
                return POLICY_LAG
            token = next(filter(self._can_cover_one_more, candidates), None)
            if token is None:
                return HIGH_WATERMARK
            permits[token].append(self._admission.issue(token))
        return ""

    def _can_cover_one_more(self, token: int) -> bool:
        fragments = self._admission.outstanding(token) + 1
        return self._credits.top_up(token, fragments * self.streams[token].unit_bytes)

    def _tell(self, stream: Stream, permits: tuple[Permit, ...], blocked_by: str) -> None:
        has_leave = self._paced and self._admission.outstanding(stream.token) > 0
        can_send = not self._paced and self._credits.available(stream.token) >= stream.unit_bytes
        throttled_by = "" if has_leave or can_send or stream.leaving else blocked_by
        total = self._credits.total(stream.token)
        quota_steps = 0 if self._leveling is None else self._leveling.steps(stream.token)
        told = (stream.granted_bytes, stream.throttled_by, stream.quota_steps)
        if permits or told != (total, throttled_by, quota_steps):
            stream.granted_bytes, stream.throttled_by, stream.quota_steps = total, throttled_by, quota_steps
            stream.send(Grant(total, permits, throttled_by, quota_steps))
