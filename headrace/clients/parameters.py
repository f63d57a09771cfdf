"""Parameters: the newest version for those who act, publishing and fetching for the one who learns.

Each client has a connection of its own, so that a full data pipe never delays parameters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.checkpoint.blob import Blob
from headrace.clients import messages
from headrace.clients.blobs import ACTING, TRAINING, BlobAssembler, chunks_of, manifest_of
from headrace.clients.retry import Result, call_until_answered
from headrace.clients.watching import OnEvent, VersionWatch, nobody_listens
from headrace.errors import InvalidDataError, UnavailableError
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import open_channel
from headrace.rpc.handshake import Handshake
from headrace.types import Array, LearnerAccount, PolicyVersion, RunStatus, Snapshot, TrainingReport
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc

_BACKOFF_S = (0.05, 2.0)
_ATTEMPT_TIMEOUT_S = 300.0  # one publish or fetch; a server that hangs is given up and called again


class SnapshotWatcher(VersionWatch[Snapshot]):
    """Keeps the newest version at hand, decoded: for those who act."""

    def _make(self, manifest: parameters_pb2.VersionManifest, acting: Blob) -> Snapshot:
        return _snapshot(manifest, acting)


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
        on_event: OnEvent = nobody_listens,
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
