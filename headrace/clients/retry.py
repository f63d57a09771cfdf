"""Calling a service that may be restarting: again and again, with backoff, until told to give up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from headrace import logs
from headrace.errors import (
    CredentialsError,
    ExhaustedError,
    FencedError,
    HandshakeError,
    HeadraceError,
    InvalidDataError,
    UnavailableError,
)
from headrace.rpc.backoff import Backoff
from headrace.rpc.errors import error_of

Result = TypeVar("Result")

_MAX_ODD_FAILURES = 5  # altered bytes, or an error of the server itself: not for ever


def call_until_answered(
    attempt: Callable[[], Result],
    *,
    backoff: Backoff,
    wait: Callable[[float], bool],
    timeout_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_retry: Callable[[HeadraceError], None] | None = None,
) -> Result:
    """The result of ``attempt``, repeated while the server can't be reached or has no room.

    ``wait(seconds)`` waits between attempts and is true once the caller wants to give up, as
    ``threading.Event.wait`` and ``Drain.wait`` do; one attempt is always made. After ``timeout_s``
    seconds (None: never) the last error is raised. Refusals (HandshakeError, FencedError,
    InvalidDataError) are raised at once. ``on_retry`` hears of an outage at its beginning, then once a
    minute, not of every attempt.
    """
    started = clock()
    odd_failures = 0
    while True:
        try:
            result = attempt()
        except grpc.RpcError as raw:
            error = error_of(raw)
        except HeadraceError as raised:
            error = raised
        else:
            backoff.reset()
            return result
        if isinstance(error, HandshakeError | FencedError | InvalidDataError):
            raise error
        if not isinstance(error, UnavailableError | ExhaustedError):
            odd_failures += 1
            if odd_failures >= _MAX_ODD_FAILURES:
                raise error
        pause = backoff.after(error)
        if pause.loud and on_retry is not None:
            on_retry(error)
        elif pause.loud and isinstance(error, CredentialsError):
            logs.get_logger().error("credentials refused", error=str(error))
        if (timeout_s is not None and clock() - started + pause.seconds > timeout_s) or wait(pause.seconds):
            raise error
