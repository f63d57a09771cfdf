"""The one place where errors of the domain become gRPC status codes, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio

from headrace.errors import (
    ChecksumError,
    CodecError,
    ConfigurationError,
    CredentialsError,
    ExhaustedError,
    FencedError,
    HandshakeError,
    HeadraceError,
    InvalidDataError,
    NonFiniteError,
    UnavailableError,
)

# First match wins, so a subclass stands before its base.
_STATUS_OF: tuple[tuple[type[HeadraceError], grpc.StatusCode], ...] = (
    (HandshakeError, grpc.StatusCode.FAILED_PRECONDITION),
    (ConfigurationError, grpc.StatusCode.FAILED_PRECONDITION),
    (ChecksumError, grpc.StatusCode.DATA_LOSS),
    (CodecError, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidDataError, grpc.StatusCode.INVALID_ARGUMENT),
    (NonFiniteError, grpc.StatusCode.INVALID_ARGUMENT),
    (ExhaustedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (FencedError, grpc.StatusCode.ABORTED),
    (CredentialsError, grpc.StatusCode.UNAUTHENTICATED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (HeadraceError, grpc.StatusCode.INTERNAL),
)

_ERROR_OF: dict[grpc.StatusCode, type[HeadraceError]] = {
    grpc.StatusCode.FAILED_PRECONDITION: HandshakeError,
    grpc.StatusCode.DATA_LOSS: ChecksumError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidDataError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidDataError,
    grpc.StatusCode.UNIMPLEMENTED: HandshakeError,
    grpc.StatusCode.ABORTED: FencedError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ExhaustedError,
    grpc.StatusCode.UNAUTHENTICATED: CredentialsError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
}

# What gRPC says of a peer whose certificate we refuse, or who speaks no TLS at all; and of one who has hung
# up before the first call: in TLS 1.3 nobody is told why their certificate was refused.
_HANDSHAKE_FAILED = "tls handshake failed"
_CLOSED_AT_ONCE = "Socket closed"
_CLOSED_HINT = " (so does a peer that demands TLS, or refuses our certificate; its log says why)"

MAX_DETAIL_BYTES = 4096  # details travel in an HTTP/2 header, which peers limit to 8 KiB


def status_of(error: HeadraceError) -> grpc.StatusCode:
    """The status code that stands for ``error`` on the wire."""
    return next(code for kind, code in _STATUS_OF if isinstance(error, kind))


def details_of(error: HeadraceError) -> str:
    """The sentence of ``error``, cut to what a status can carry."""
    encoded = str(error).encode("utf-8", "replace")
    if len(encoded) <= MAX_DETAIL_BYTES:
        return encoded.decode()
    return encoded[: MAX_DETAIL_BYTES - 4].decode("utf-8", "ignore") + " ..."


@contextmanager
def answering(context: grpc.ServicerContext) -> Iterator[None]:
    """Run the body of an rpc; a domain error inside ends the rpc with its status and sentence."""
    try:
        yield
    except HeadraceError as error:
        context.abort(status_of(error), details_of(error))


@asynccontextmanager
async def answering_async(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """As :func:`answering`, on a server that runs in an event loop."""
    try:
        yield
    except HeadraceError as error:
        await context.abort(status_of(error), details_of(error))


def error_of(error: grpc.RpcError) -> HeadraceError:
    """The domain error behind a failed call. Unknown codes become a plain ``HeadraceError``."""
    call: Any = error  # every RpcError a call raises is also its grpc.Call, which the stubs don't know
    code: grpc.StatusCode = call.code() if hasattr(call, "code") else grpc.StatusCode.UNKNOWN
    details = (call.details() if hasattr(call, "details") else "") or code.name
    if code is grpc.StatusCode.UNAVAILABLE:
        if _HANDSHAKE_FAILED in details.lower():
            return CredentialsError(f"TLS failed: {details}")
        if _CLOSED_AT_ONCE in details:
            return UnavailableError(f"{details}{_CLOSED_HINT}")
    return _ERROR_OF.get(code, HeadraceError)(details)


def is_fatal(error: HeadraceError) -> bool:
    """Whether trying again with the same request can't help."""
    return isinstance(error, HandshakeError | ConfigurationError)
