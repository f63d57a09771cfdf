"""Parameters: the newest version for those who act, publishing and fetching for the one who learns.

Each client has a connection of its own, so that a full data pipe never delays parameters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from headrace.checkpoint.blob import Blob
from headrace.clients import messages
from headrace.clients.blobs import ACTING, TRAINING, BlobAssembler, chunks_of, manifest_of
from headrace.clients.retry import Result, call_until_answered
from headrace.errors import HeadraceError, InvalidDataError, UnavailableError
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import open_channel
from headrace.rpc.errors import error_of, is_fatal
from headrace.rpc.handshake import Handshake
from headrace.types import Array, LearnerAccount, PolicyVersion, RunStatus, Snapshot, TrainingReport
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc

_BACKOFF_S = (0.05, 2.0)
_ATTEMPT_TIMEOUT_S = 300.0  # one publish or fetch; a server that hangs is given up and called again

OnEvent = Callable[[str, str], None]
"""Hears ``(kind, sentence)`` of what a client went through, for logs."""


def _ignore(_kind: str, _sentence: str) -> None:
    """Nobody listens."""


class SnapshotWatcher:
    """Keeps the newest version at hand. A thread of its own receives, checks the hash and decodes.

    Invariants: versions only rise; a snapshot is shown only after its hash matched; after a lost
    connection it reconnects by itself (backoff with jitter) and asks for what is newer than it has.
    ``_changed`` guards the newest snapshot, the run's status, ``fatal`` and the call in progress.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        clock: Callable[[], float] = time.monotonic,
        *,
        rng: np.random.Generator | None = None,
        on_event: OnEvent = _ignore,
    ) -> None:
        self._handshake = handshake.to_proto()
        self._clock = clock
        self._on_event = on_event
        self._channel = open_channel(address)
        self._stub: Any = parameters_service_pb2_grpc.ParameterServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._backoff = Backoff(*_BACKOFF_S, rng or np.random.default_rng())
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._newest: Snapshot | None = None
        self._status = RunStatus("starting")
        self._fatal: HeadraceError | None = None
        self._heard_at = clock()
        self._call: Any = None
        self._thread = threading.Thread(target=self._watch, name="snapshot-watcher", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def newest(self) -> Snapshot | None:
        """The newest verified version; None before the first."""
        with self._changed:
            return self._newest

    def wait_newer(self, than: PolicyVersion | None, timeout_s: float) -> Snapshot | None:
        """The newest version if it is newer than ``than``; None after ``timeout_s`` seconds, a fatal
        error, or :meth:`stop`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_newer(than) or self._over, timeout_s)
            return self._newest if self._is_newer(than) else None

    def run_state(self) -> RunStatus:
        """Phase of the run as last heard; ``starting`` before anything was heard."""
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

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                self._receive()
                error: HeadraceError = UnavailableError("the server ended the stream")
            except grpc.RpcError as raw:
                error = error_of(raw)
            except HeadraceError as raised:
                error = raised
            if self._stopped.is_set():
                return
            if is_fatal(error):
                with self._changed:
                    self._fatal = error
                    self._changed.notify_all()
                return
            if not self._backoff.failures:  # once an outage, not once a try
                self._on_event("watch_lost", f"{error}; trying again until it answers")
            self._stopped.wait(self._backoff.next_s())

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
            incoming = _IncomingVersion(self._show)
            for response in call:
                self._hear(response)
                incoming.feed(response)
                self._backoff.reset()
        finally:
            call.cancel()

    def _hear(self, response: parameters_pb2.WatchVersionsResponse) -> None:
        status = None
        if response.WhichOneof("kind") == "run_state":
            status = messages.status_from_proto(response.run_state)
        with self._changed:
            self._heard_at = self._clock()
            if status is not None and status != self._status:
                self._status = status
                self._changed.notify_all()

    def _show(self, snapshot: Snapshot) -> None:
        with self._changed:
            if self._newest is None or snapshot.version > self._newest.version:
                self._newest = snapshot
                self._changed.notify_all()


class _IncomingVersion:
    """The version whose pieces are arriving on a watch; handed to ``show`` once it is whole."""

    def __init__(self, show: Callable[[Snapshot], None]) -> None:
        self._show = show
        self._manifest: parameters_pb2.VersionManifest | None = None
        self._assembler = BlobAssembler(())

    def feed(self, response: parameters_pb2.WatchVersionsResponse) -> None:
        """Take one message of the watch."""
        kind = response.WhichOneof("kind")
        if kind == "manifest":
            self._manifest = response.manifest
            self._assembler = BlobAssembler(response.manifest.blobs)
        elif kind == "chunk":
            self._assembler.feed(response.chunk)
        if self._manifest is not None and self._assembler.complete:
            self._show(_snapshot(self._manifest, self._assembler.take(ACTING)))
            self._manifest = None


@dataclass(frozen=True, slots=True)
class Published:
    """Answer to a publish: the version issued. ``want_training``: a checkpoint is due, the next publish
    should carry the training state; once ``run_state`` has ended, publish the same version again with it."""

    version: PolicyVersion
    want_training: bool
    run_state: RunStatus


@dataclass(frozen=True, slots=True)
class Fetched:
    """The newest version with what a learner needs to go on. ``training`` is None if there is none."""

    snapshot: Snapshot
    training: Mapping[str, Array] | None
    report: TrainingReport
    accounts: tuple[LearnerAccount, ...]


class PublishClient:
    """The learner's side. Every call retries through a restart of the server.

    Publishing is idempotent: a retry after a lost answer is answered with the version already issued.
    ``wait(seconds)`` sleeps between attempts and is true once the learner wants to give up, as
    ``Drain.wait`` is. Not for use by several threads at a time.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        *,
        wait: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: np.random.Generator | None = None,
        on_event: OnEvent = _ignore,
    ) -> None:
        self._handshake = handshake.to_proto()
        self._wait = wait or threading.Event().wait
        self._clock = clock
        self._on_event = on_event
        self._channel = open_channel(address)
        self._stub: Any = parameters_service_pb2_grpc.ParameterServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._backoff = Backoff(*_BACKOFF_S, rng or np.random.default_rng())

    def publish(
        self,
        base: PolicyVersion | None,
        acting: Mapping[str, Array],
        training: Mapping[str, Array] | None,
        report: TrainingReport,
        accounts: Sequence[LearnerAccount],
        *,
        timeout_s: float | None = None,
    ) -> Published:
        """Publish what the update from ``base`` (None: the very first version) made.

        Raises HandshakeError (the two ends don't belong together), FencedError (``base`` is not the
        newest version: start again from that one), InvalidDataError (refused, e.g. not finite; names
        the tensor), UnavailableError (gave up after ``timeout_s`` seconds, or told to).
        """
        blobs = {ACTING: Blob.encode(acting)}
        if training is not None:
            blobs[TRAINING] = Blob.encode(training)
        header = parameters_pb2.PublishHeader(
            handshake=self._handshake,
            base=messages.version_to_proto(base),
            blobs=[manifest_of(kind, blob) for kind, blob in blobs.items()],
            report=messages.report_to_proto(report),
            accounts=messages.accounts_to_proto(accounts),
        )

        def attempt() -> Published:
            answer = self._stub.PublishVersion(_publish_messages(header, blobs), timeout=_ATTEMPT_TIMEOUT_S)
            return Published(
                version=messages.version_from_proto(answer.version),
                want_training=answer.want_training_blob,
                run_state=messages.status_from_proto(answer.run_state),
            )

        return self._until_answered(attempt, timeout_s)

    def fetch(self, with_training: bool = True, *, timeout_s: float | None = None) -> Fetched | None:
        """The newest version, for a learner that starts; None if nothing was ever published.

        Raises what :meth:`publish` raises.
        """
        request = parameters_pb2.FetchVersionRequest(
            handshake=self._handshake, with_training_blob=with_training
        )

        def attempt() -> Fetched | None:
            return _receive_fetched(self._stub.FetchVersion(request, timeout=_ATTEMPT_TIMEOUT_S))

        return self._until_answered(attempt, timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _until_answered(self, attempt: Callable[[], Result], timeout_s: float | None) -> Result:
        return call_until_answered(
            attempt,
            backoff=self._backoff,
            wait=self._wait,
            timeout_s=timeout_s,
            clock=self._clock,
            on_retry=lambda error: self._on_event("paramserver_unreachable", str(error)),
        )


def _publish_messages(
    header: parameters_pb2.PublishHeader, blobs: Mapping[parameters_pb2.BlobKind, Blob]
) -> Iterator[parameters_pb2.PublishVersionRequest]:
    yield parameters_pb2.PublishVersionRequest(header=header)
    for kind, blob in blobs.items():
        for chunk in chunks_of(kind, blob):
            yield parameters_pb2.PublishVersionRequest(chunk=chunk)


def _receive_fetched(responses: Iterable[parameters_pb2.FetchVersionResponse]) -> Fetched | None:
    manifest: parameters_pb2.VersionManifest | None = None
    assembler = BlobAssembler(())
    for response in responses:
        if response.WhichOneof("kind") == "manifest":
            manifest = response.manifest
            assembler = BlobAssembler(manifest.blobs)
        else:
            assembler.feed(response.chunk)
    if manifest is None:
        raise UnavailableError("the server ended the fetch without a word")
    if not manifest.HasField("version"):
        return None
    training = assembler.take(TRAINING)
    return Fetched(
        snapshot=_snapshot(manifest, assembler.take(ACTING)),
        training=None if training is None else training.decode(),
        report=messages.report_from_proto(manifest.report),
        accounts=messages.accounts_from_proto(manifest.accounts),
    )


def _snapshot(manifest: parameters_pb2.VersionManifest, acting: Blob | None) -> Snapshot:
    if acting is None:
        raise InvalidDataError("a version came without its acting blob")
    return Snapshot(
        version=messages.version_from_proto(manifest.version),
        parameters=acting.decode(),
        config_digest=manifest.config_digest,
        sha256=acting.sha256,
    )
