"""Watching for versions: one stream, taken up again whenever it is lost. Hashes are checked before use."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc
import numpy as np

from headrace.checkpoint.blob import Blob
from headrace.clients import messages
from headrace.clients.blobs import ACTING, BlobAssembler
from headrace.errors import HeadraceError, InvalidDataError, UnavailableError
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import open_channel
from headrace.rpc.errors import error_of, is_fatal
from headrace.rpc.handshake import Handshake
from headrace.types import PolicyVersion, RunStatus
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc

_BACKOFF_S = (0.05, 2.0)

OnEvent = Callable[[str, str], None]
"""Hears ``(kind, sentence)`` of what a client went through, for logs."""


def nobody_listens(_kind: str, _sentence: str) -> None:
    """An :data:`OnEvent` for who doesn't want to hear."""


def _nobody_waits() -> None:
    """Nobody needs to be woken."""


class Versioned(Protocol):
    """What a watch makes of a version."""

    @property
    def version(self) -> PolicyVersion:
        """Which."""
        ...


Item = TypeVar("Item", bound=Versioned)


class VersionWatch(ABC, Generic[Item]):
    """Keeps the newest version at hand. A thread of its own receives, checks the hash and calls ``_make``.

    Invariants: versions only rise; a version is shown only after its hash matched; after a lost
    connection it reconnects by itself (backoff with jitter) and asks for what is newer than it has.
    ``_changed`` guards the newest version, the run's status, ``fatal`` and the call in progress.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        clock: Callable[[], float] = time.monotonic,
        *,
        rng: np.random.Generator | None = None,
        on_event: OnEvent = nobody_listens,
        on_change: Callable[[], None] = _nobody_waits,
    ) -> None:
        """``on_change`` is called in the thread of the watch after a new version, a new status of the
        run, or a fatal error; it must not block.
        """
        self._handshake = handshake.to_proto()
        self._clock = clock
        self._on_event = on_event
        self._on_change = on_change
        self._address = address
        self._connect()
        self._backoff = Backoff(*_BACKOFF_S, rng or np.random.default_rng())
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._newest: Item | None = None
        self._status: RunStatus | None = None
        self._fatal: HeadraceError | None = None
        self._heard_at = clock()
        self._call: Any = None
        self._thread = threading.Thread(target=self._watch, name="version-watch", daemon=True)

    @abstractmethod
    def _make(self, manifest: parameters_pb2.VersionManifest, acting: Blob) -> Item:
        """What is kept of a version that is whole. May raise HeadraceError: it is asked for again."""

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def newest(self) -> Item | None:
        """The newest verified version; None before the first."""
        with self._changed:
            return self._newest

    def wait_newer(self, than: PolicyVersion | None, timeout_s: float) -> Item | None:
        """The newest version if it is newer than ``than``; None after ``timeout_s`` seconds, a fatal
        error, or :meth:`stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_newer(than) or self._over, timeout_s)
            return self._newest if self._is_newer(than) else None

    def run_state(self) -> RunStatus:
        """Phase of the run as last heard; ``starting`` before anything was heard."""
        return self.told or RunStatus("starting")

    @property
    def told(self) -> RunStatus | None:
        """Phase of the run as last heard; None before anything was heard."""
        with self._changed:
            return self._status

    @property
    def fatal(self) -> HeadraceError | None:
        """Why it gave up for good (the handshake was refused); None while it works or retries."""
        with self._changed:
            return self._fatal

    @property
    def silent_s(self) -> float:
        """Seconds since the server was last heard. It speaks at least every 5 s."""
        with self._changed:
            return self._clock() - self._heard_at

    def stop(self) -> None:
        """End the thread and the connection. Idempotent."""
        with self._changed:
            self._stopped.set()
            call = self._call
            self._changed.notify_all()
        if call is not None:
            call.cancel()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)
        self._channel.close()

    @property
    def _over(self) -> bool:
        return self._stopped.is_set() or self._fatal is not None

    def _is_newer(self, than: PolicyVersion | None) -> bool:
        return self._newest is not None and (than is None or self._newest.version > than)

    def _connect(self) -> None:
        self._channel = open_channel(self._address)
        self._stub: Any = parameters_service_pb2_grpc.ParameterServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def _look_around(self) -> None:
        """The server has asked to be left: behind its name there may be another one by now."""
        with self._changed:
            if not self._stopped.is_set():
                self._channel.close()
                self._connect()

    def _watch(self) -> None:
        while not self._stopped.is_set():
            heard_at = self._heard_at
            try:
                self._receive()
                self._look_around()
                if self._heard_at != heard_at:
                    continue
                error: HeadraceError = UnavailableError("the server ends every stream at once")
            except grpc.RpcError as raw:
                error = error_of(raw)
            except HeadraceError as raised:
                error = raised
            if self._stopped.is_set():
                return
            if is_fatal(error):
                self._change(fatal=error)
                return
            pause = self._backoff.after(error)
            if pause.loud:
                self._on_event("watch_lost", f"{error}; trying again until it answers")
            self._stopped.wait(pause.seconds)

    def _receive(self) -> None:
        """One stream, until it ends. Raises grpc.RpcError, or HeadraceError for bytes that lie."""
        newest = self.newest()
        have = None if newest is None else messages.version_to_proto(newest.version)
        request = parameters_pb2.WatchVersionsRequest(handshake=self._handshake, have=have)
        call = self._stub.WatchVersions(request)
        with self._changed:
            self._call = call
            if self._stopped.is_set():
                call.cancel()
        try:
            incoming = _IncomingVersion(self._take)
            for response in call:
                self._hear(response)
                incoming.feed(response)
                self._backoff.reset()
            if not incoming.complete:
                raise UnavailableError("the server ended the stream in the middle of a version")
        finally:
            call.cancel()

    def _hear(self, response: parameters_pb2.WatchVersionsResponse) -> None:
        with self._changed:
            self._heard_at = self._clock()
        if response.WhichOneof("kind") == "run_state":
            status = messages.status_from_proto(response.run_state)
            if status != self.told:
                self._change(status=status)

    def _take(self, manifest: parameters_pb2.VersionManifest, acting: Blob) -> None:
        item = self._make(manifest, acting)
        newest = self.newest()
        if newest is None or item.version > newest.version:
            self._change(item=item)

    def _change(
        self,
        *,
        item: Item | None = None,
        status: RunStatus | None = None,
        fatal: HeadraceError | None = None,
    ) -> None:
        """Only the thread of the watch changes anything."""
        with self._changed:
            self._newest = item or self._newest
            self._status = status or self._status
            self._fatal = fatal or self._fatal
            self._changed.notify_all()
        self._on_change()


class _IncomingVersion:
    """The version whose pieces are arriving on a watch; handed to ``take`` once it is whole.

    A manifest in the middle of a version starts over with the newer one.
    """

    def __init__(self, take: Callable[[parameters_pb2.VersionManifest, Blob], None]) -> None:
        self._take = take
        self._manifest: parameters_pb2.VersionManifest | None = None
        self._assembler = BlobAssembler(())

    @property
    def complete(self) -> bool:
        """Whether nothing is missing of what was begun."""
        return self._manifest is None

    def feed(self, response: parameters_pb2.WatchVersionsResponse) -> None:
        """Take one message of the watch."""
        kind = response.WhichOneof("kind")
        if kind == "manifest":
            self._manifest = response.manifest
            self._assembler = BlobAssembler(response.manifest.blobs)
        elif kind == "chunk":
            self._assembler.feed(response.chunk)
        if self._manifest is not None and self._assembler.complete:
            manifest, self._manifest = self._manifest, None
            acting = self._assembler.take(ACTING)
            if acting is None:
                raise InvalidDataError("a version came without its acting blob")
            self._take(manifest, acting)
