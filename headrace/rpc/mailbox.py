"""What is to be said on one stream, merged: however slow the peer reads, it stays small."""

from __future__ import annotations

import threading
from collections import deque

from headrace.codec.control import Response, Welcome
from headrace.errors import HandshakeError, HeadraceError, UnavailableError
from headrace.flow.messages import Closed, Grant, Permit, Refused, Settled, ToSampler

_MAX_REFUSALS = 1024  # each is for people to read; that it is settled is said by Settled


class Mailbox:
    """Messages of many threads to one stream. Totals replace older totals; permits and refusals add up.

    Bounded: one grant, one settlement, the permits that are out, the newest refusals. Nothing leaves
    before the welcome. ``_changed`` guards everything.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._welcome: Welcome | None = None
        self._welcomed = False
        self._grant: Grant | None = None
        self._permits: list[Permit] = []
        self._settled: Settled | None = None
        self._refused: deque[Refused] = deque(maxlen=_MAX_REFUSALS)
        self._error: HeadraceError | None = None
        self._ended = False

    def put(self, message: ToSampler | Welcome) -> None:
        """Say ``message`` as soon as the peer reads. Never blocks."""
        with self._changed:
            match message:
                case Grant():
                    self._grant = message
                    self._permits += message.permits
                case Settled():
                    self._settled = message
                case Refused():
                    self._refused.append(message)
                case Welcome():
                    self._welcome = message
                case Closed(reason, draining):
                    self._error = self._error or (UnavailableError if draining else HandshakeError)(reason)
            self._changed.notify()

    def fail(self, error: HeadraceError) -> None:
        """End the stream with ``error``, after what is already to be said."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify()

    def end(self) -> None:
        """The peer has nothing more to say, or is gone."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Response] | None:
        """What is to be said now, in order; empty after ``timeout_s`` seconds of nothing; None: hang up.

        Raises the error that the stream ends with.
        """
        with self._changed:
            self._changed.wait_for(self._ready, timeout_s)
            messages = self._collect()
            if messages:
                return messages
            if self._error is not None:
                raise self._error
            return None if self._ended else []

    def pause(self, timeout_s: float) -> None:
        """Let what is to be said gather for ``timeout_s`` seconds; cut short by permits and by the end.

        A message costs the same CPU however little it says; permits are what a peer may be idle for.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._permits) or self._error is not None or self._ended, timeout_s
            )

    def _ready(self) -> bool:
        if self._error is not None or self._ended or self._welcome is not None:
            return True
        return self._welcomed and bool(self._grant or self._settled or self._refused)

    def _collect(self) -> list[Response]:
        messages: list[Response] = []
        if self._welcome is not None:
            messages.append(self._welcome)
            self._welcome, self._welcomed = None, True
        if not self._welcomed:
            return messages
        if self._settled is not None:
            messages.append(self._settled)
        messages += self._refused
        if self._grant is not None:
            messages.append(Grant(self._grant.total_bytes, tuple(self._permits), self._grant.throttled_by))
        self._settled = self._grant = None
        self._permits = []
        self._refused.clear()
        return messages
