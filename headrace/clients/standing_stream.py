"""A stream that one end keeps open for as long as it lives: reopened whenever it breaks, newest word wins."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import grpc
import numpy as np

from headrace.errors import HeadraceError, InvalidDataError
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import open_channel
from headrace.rpc.errors import error_of, is_fatal

Request = TypeVar("Request")
Response = TypeVar("Response")

OnEvent = Callable[[str, str], None]
"""Hears ``(kind, sentence)`` of what the connection goes through, for logs and events."""

_BACKOFF_S = (0.05, 2.0)
_IDLE_S = 1.0  # longest sleep of the sending side before it looks whether the stream still lives
_MAX_REFUSED_STREAMS = 3  # streams in a row that the peer ended because of what we sent


class StandingStream(ABC, Generic[Request, Response]):
    """Keeps one stream open in a thread of its own; a subclass says what is sent and what is heard.

    After a lost connection it connects again for ever, with backoff and jitter. ``fatal`` says why it gave
    up: the two ends don't belong together, or the peer refuses what we send. Every wait has a reason and a
    timer.

    ``_changed`` guards all state; the subclass's methods that begin with an underscore are called with it
    held, except :meth:`_dial`. It is notified whenever something has changed.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        rng: np.random.Generator | None = None,
        on_event: OnEvent = lambda _kind, _sentence: None,
    ) -> None:
        self._address = address
        self._name = name
        self._clock = clock
        self._on_event = on_event
        self._backoff = Backoff(*_BACKOFF_S, rng or np.random.default_rng())
        self._changed = threading.Condition()
        self._connected = False
        self._leaving = False
        self._closed = False
        self._fatal: HeadraceError | None = None
        self._refused_streams = 0
        self._call: Any = None
        self._wait_reason = ""
        self._wait_seconds: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def close(self) -> None:
        """End the stream and its thread. Idempotent."""
        with self._changed:
            self._closed = True
            call = self._call
            self._changed.notify_all()
        if call is not None:
            call.cancel()
        if self._thread.is_alive():
            self._thread.join(5.0)

    @property
    def connected(self) -> bool:
        """Whether the peer has answered on the stream that is open."""
        with self._changed:
            return self._connected

    @property
    def fatal(self) -> HeadraceError | None:
        """Why it gave up for good; None while it has not."""
        with self._changed:
            return self._fatal

    @property
    def wait_reason(self) -> str:
        """Why the caller may not go on right now; "" if it may."""
        with self._changed:
            return self._wait_reason

    @property
    def wait_seconds(self) -> dict[str, float]:
        """Seconds that callers have waited so far, by reason."""
        with self._changed:
            return dict(self._wait_seconds)

    @abstractmethod
    def _dial(self, channel: grpc.Channel, requests: Iterator[Request]) -> Any:
        """Call the rpc; returns the call, which iterates over responses."""

    @abstractmethod
    def _first(self) -> Request:
        """The message that opens a stream."""

    @abstractmethod
    def _next(self) -> tuple[Request | None, float]:
        """What is to be said now; or None, and for how many seconds at most there will be nothing."""

    @abstractmethod
    def _hear(self, response: Response) -> None:
        """Take what the peer says."""

    def _last(self) -> Request | None:
        """The message that a caller who leaves in order ends with; None: none."""
        return None

    @property
    def _over(self) -> bool:
        return self._closed or self._fatal is not None

    def _wait_until(self, reason_now: Callable[[], str], timeout_s: float) -> bool:
        """Wait, on the account of its reason, until ``reason_now`` gives none. The caller holds ``_changed``.

        False after ``timeout_s`` seconds, or once it is over.
        """
        deadline = self._clock() + timeout_s
        while not self._over:
            reason = self._wait_reason = reason_now()
            if not reason:
                return True
            began = self._clock()
            if began >= deadline:
                return False
            self._changed.wait(deadline - began)
            self._wait_seconds[reason] = self._wait_seconds.get(reason, 0.0) + self._clock() - began
        return False

    # The background thread.

    def _run(self) -> None:
        try:
            while True:
                error = self._hold_stream()
                with self._changed:
                    if self._closed or self._leaving:
                        return
                if self._gives_up(error):
                    self._fail(error)
                    return
                pause = self._backoff.after(error)
                if pause.loud:
                    self._on_event("disconnected", f"{error}; trying again until it answers")
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._leaving, pause.seconds)
        except Exception as error:  # a fault of ours must end the caller, not leave it waiting for ever
            self._fail(HeadraceError(f"the {self._name} failed: {error!r}"))
            raise

    def _hold_stream(self) -> HeadraceError:
        """Open a stream and follow it until it ends; returns why it ended."""
        stream = _Open()
        with open_channel(self._address) as channel:
            call = self._dial(channel, self._requests(stream))
            with self._changed:
                self._call = call
                if self._closed:  # whoever closed could not yet know of this call
                    call.cancel()
            try:
                for response in call:
                    self._receive(response)
                return HeadraceError(f"{self._address} ended the stream")
            except grpc.RpcError as error:
                return error_of(error)
            except HeadraceError as error:  # what it says makes no sense
                return error
            finally:
                call.cancel()
                with self._changed:
                    stream.ended = True
                    self._call, self._connected = None, False
                    self._changed.notify_all()

    def _requests(self, stream: _Open) -> Iterator[Request]:
        """Pulled by a thread of gRPC's, until the stream ends or the caller leaves."""
        with self._changed:
            first = self._first()
        yield first
        while True:
            with self._changed:
                message = self._wait_for_word(stream)
            if message is None:
                return
            yield message

    def _wait_for_word(self, stream: _Open) -> Request | None:
        while not stream.ended and not self._closed:
            message, wait_s = self._next()
            if message is not None:
                return message
            if self._leaving:
                if stream.said_last:
                    return None
                stream.said_last = True
                return self._last()
            self._changed.wait(min(wait_s, _IDLE_S))
        return None

    def _receive(self, response: Response) -> None:
        with self._changed:
            connected, self._connected = self._connected, True
            self._hear(response)
            self._backoff.reset()
            self._refused_streams = 0
            self._changed.notify_all()
        if not connected:
            self._on_event("connected", self._address)

    def _gives_up(self, error: HeadraceError) -> bool:
        if isinstance(error, InvalidDataError):
            self._refused_streams += 1
        return is_fatal(error) or self._refused_streams >= _MAX_REFUSED_STREAMS

    def _fail(self, error: HeadraceError) -> None:
        with self._changed:
            self._fatal = error
            self._changed.notify_all()
        self._on_event("fatal", str(error))


class _Open:
    """State of one stream from open to end, guarded by the owner's condition."""

    def __init__(self) -> None:
        self.ended = False
        self.said_last = False
