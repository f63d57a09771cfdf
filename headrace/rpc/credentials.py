"""What a process proves itself with to its peers, and what it demands of them; follows its files.

One process has one identity. It is set once, at the start, with :func:`use_credentials`; every server and
every channel made after that has it, unless it is given another one.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from headrace import logs
from headrace.credential_files import (
    PEER_NAME,
    Stamp,
    TlsFiles,
    read_tls,
    read_tokens,
    stamp,
    tls_paths,
)
from headrace.errors import ConfigurationError

TLS_VARIABLE, TOKEN_VARIABLE = "HEADRACE_TLS", "HEADRACE_TOKEN_FILE"
LOOK_S = 1.0
"""Seconds between two looks at whether the files have changed, at least."""
_SAY_AGAIN_S = 60.0
_HEADER = "authorization"
_SCHEME = "Bearer "

Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials as they are now. ``generation`` rises when they change."""

    generation: int = 0
    tls: TlsFiles | None = None
    tokens: tuple[str, ...] = ()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return ((_HEADER, _SCHEME + self.tokens[0]),) if self.tokens else ()

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """For one channel, which keeps them for life; None: without TLS."""
        if self.tls is None:
            return None
        return grpc.ssl_channel_credentials(self.tls.ca, self.tls.key, self.tls.certificate)

    def server_configuration(self) -> grpc.ServerCertificateConfiguration:
        """For the next handshake of a server. Only with TLS."""
        assert self.tls is not None
        pairs = [(self.tls.key, self.tls.certificate)]
        return grpc.ssl_server_certificate_configuration(pairs, root_certificates=self.tls.ca)


class Credentials:
    """Mutual TLS, a bearer token, both or neither. Thread-safe.

    The files are read again when they change. What they hold then must be whole: until it is, the last
    good state stays, and the log says why, once a minute. ``_lock`` guards all state.
    """

    def __init__(
        self,
        tls: Path | None = None,
        token_file: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        look_s: float = LOOK_S,
    ) -> None:
        """``tls``: folder with ca.crt, tls.crt and tls.key. ConfigurationError: files that can't be used."""
        self._tls = tls
        self._token_file = token_file
        self._clock = clock
        self._look_s = look_s
        self._lock = threading.Lock()
        self._paths = (*(tls_paths(tls) if tls else ()), *((token_file,) if token_file else ()))
        self._stamp: Stamp | None = stamp(*self._paths)
        self._identity = self._read(0)
        self._looked_at = clock()
        self._said: tuple[str, float] = ("", 0.0)

    @classmethod
    def of_environment(
        cls, environ: Mapping[str, str], *, tls: Path | None = None, token_file: Path | None = None
    ) -> Credentials:
        """What is given, else what the variables name that services have, too."""

        def found(given: Path | None, variable: str) -> Path | None:
            text = environ.get(variable)
            return given or (Path(text) if text else None)

        return cls(found(tls, TLS_VARIABLE), found(token_file, TOKEN_VARIABLE))

    @property
    def with_tls(self) -> bool:
        """Whether connections are encrypted, and both ends prove who they are."""
        return self._tls is not None

    @property
    def with_token(self) -> bool:
        """Whether calls carry a token."""
        return self._token_file is not None

    def current(self) -> Identity:
        """As they are now, at most ``look_s`` seconds old."""
        with self._lock:
            now = self._clock()
            if self._paths and now - self._looked_at >= self._look_s:
                self._looked_at = now
                self._look(now)
            return self._identity

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """For a server, which asks again at every handshake; None: without TLS."""
        if not self.with_tls:
            return None
        fetch: Any = _Fetcher(self)  # it may answer None, which the stubs don't know
        return grpc.dynamic_ssl_server_credentials(
            self.current().server_configuration(), fetch, require_client_authentication=True
        )

    def refusal(self, metadata: Metadata) -> str:
        """Why a call with such ``metadata`` must not be served, in a sentence; empty: it may be."""
        if not self.with_token:
            return ""
        given = [value for key, value in metadata if key == _HEADER]
        if len(given) != 1:
            return "this service demands a token, and the call has none (--token-file, HEADRACE_TOKEN_FILE)"
        text = given[0] if isinstance(given[0], bytes) else given[0].encode("utf-8", "replace")
        # Every token is compared, each in constant time: how long it takes tells nothing.
        accepted = (_SCHEME + token for token in self.current().tokens)
        fitting = [hmac.compare_digest(text, token.encode()) for token in accepted]
        return "" if any(fitting) else "this service doesn't accept the call's token"

    def _look(self, now: float) -> None:
        found = stamp(*self._paths)
        if found is not None and found == self._stamp:
            return
        try:
            self._identity = self._read(self._identity.generation + 1)
        except ConfigurationError as error:
            said, at = self._said
            if said != str(error) or now - at >= _SAY_AGAIN_S:
                self._said = (str(error), now)
                logs.get_logger().error("new credentials can't be used, the old ones stay", error=str(error))
            return
        # Taken before the reading: a change during it is seen at the next look.
        self._stamp = found
        self._said = ("", now)
        logs.get_logger().info("credentials renewed", generation=self._identity.generation)

    def _read(self, generation: int) -> Identity:
        problems: list[str] = []
        tls: TlsFiles | None = None
        tokens: tuple[str, ...] = ()
        try:
            tls = read_tls(self._tls) if self._tls else None
        except ConfigurationError as error:
            problems += error.problems
        try:
            tokens = read_tokens(self._token_file) if self._token_file else ()
        except ConfigurationError as error:
            problems += error.problems
        if problems:
            raise ConfigurationError(problems)
        return Identity(generation, tls, tokens)


class _Fetcher:
    """Tells a server's transport which certificate to use from now on; called at every handshake."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._generation = -1

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        identity = self._credentials.current()
        if identity.generation == self._generation:
            return None  # as at the last handshake
        self._generation = identity.generation
        return identity.server_configuration()


_process = Credentials()


def use_credentials(credentials: Credentials) -> Credentials:
    """Give this process another identity; returns the one it had. Channels and servers keep theirs."""
    global _process
    before, _process = _process, credentials
    return before


def process_credentials() -> Credentials:
    """The identity of this process: none, until it was given one."""
    return _process


# Clients check this name, so that one certificate does for all addresses of all processes.
NAME_OPTIONS: tuple[tuple[str, str], ...] = (
    ("grpc.ssl_target_name_override", PEER_NAME),
    ("grpc.default_authority", PEER_NAME),
)
