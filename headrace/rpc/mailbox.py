"""What is to be said on one stream of fragments, merged: however slow the sampler reads, it stays small."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from headrace.codec.control import Response, Welcome
from headrace.errors import HandshakeError, UnavailableError
from headrace.flow.messages import Closed, Grant, Permit, Refused, Settled, ToSampler
from headrace.rpc import merging

_MAX_REFUSALS = 1024  # each is for people to read; that it is settled is said by Settled


class Mailbox(merging.Mailbox[Response]):
    """Messages of many threads to one stream. Totals replace older totals; permits and refusals add up.

    Bounded: one grant, one settlement, the permits that are out, the newest refusals. Nothing leaves
    before the welcome.
    """

    def __init__(self) -> None:
        super().__init__()
        self._welcome: Welcome | None = None
        self._welcomed = False
        self._grant: Grant | None = None
        self._permits: list[Permit] = []
        self._settled: Settled | None = None
        self._refused: deque[Refused] = deque(maxlen=_MAX_REFUSALS)

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

    def _urgent(self) -> bool:
        """Permits are what a peer may be idle for."""
        return bool(self._permits)

    def _ready(self) -> bool:
        if self._welcome is not None:
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
            messages.append(replace(self._grant, permits=tuple(self._permits)))
        self._settled = self._grant = None
        self._permits = []
        self._refused.clear()
        return messages
