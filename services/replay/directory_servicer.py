"""DirectoryService: decode, check at the door, hand to the core, say what it answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc

from headrace.clients import directory_messages as messages
from headrace.config.sections import Config
from headrace.errors import InvalidDataError
from headrace.replay.members import Followed, ShardGrant
from headrace.rpc.errors import answering
from headrace.rpc.handshake import Handshake, check
from headrace.rpc.merging import Newest, listen
from headrace.rpc.server import Register
from headrace.v1 import directory_pb2
from headrace.v1.directory_service_pb2_grpc import (
    DirectoryServiceServicer,
    add_DirectoryServiceServicer_to_server,
)
from services.replay.directory_core import DirectoryCore
from services.replay.metrics import ReplayMetrics

SERVICE = "headrace.v1.DirectoryService"
HANDSHAKE_S = 10.0  # a peer that opens a stream and says nothing for so long is cut
_IDLE_S = 1.0
_GATHER_S = 0.005

Said = TypeVar("Said")


class DirectoryServicer(DirectoryServiceServicer):
    """Two threads a stream: gRPC's own one speaks, one of ours listens."""

    def __init__(self, core: DirectoryCore, own: Handshake, *, handshake_s: float = HANDSHAKE_S) -> None:
        self._core = core
        self._own = own
        self._handshake_s = handshake_s

    def JoinShard(
        self, request_iterator: Iterator[directory_pb2.JoinShardRequest], context: grpc.ServicerContext
    ) -> Iterator[directory_pb2.JoinShardResponse]:
        """A shard's state in, leave to insert out."""
        mailbox: Newest[ShardGrant] = Newest()
        listener = _ShardListener(self._core, self._own, mailbox)
        with answering(context):
            yield from map(messages.grant_to_proto, self._said(request_iterator, listener, mailbox, context))

    def FollowDirectory(
        self, request_iterator: Iterator[directory_pb2.FollowDirectoryRequest], context: grpc.ServicerContext
    ) -> Iterator[directory_pb2.FollowDirectoryResponse]:
        """What a learner draws in, views out."""
        mailbox: Newest[Followed] = Newest()
        listener = _LearnerListener(self._core, self._own, mailbox)
        with answering(context):
            yield from map(_followed_to_proto, self._said(request_iterator, listener, mailbox, context))

    def GetDirectory(
        self, request: directory_pb2.GetDirectoryRequest, context: grpc.ServicerContext
    ) -> directory_pb2.GetDirectoryResponse:
        """Everything at a glance."""
        return messages.glance_to_proto(self._core.glance())

    def _said(
        self,
        requests: Iterator[Any],
        listener: _Listener,
        mailbox: Newest[Said],
        context: grpc.ServicerContext,
    ) -> Iterator[Said]:
        """What is said on a stream until it ends, while another thread listens to it."""
        threading.Thread(
            target=partial(listen, requests, listener.take, mailbox, who="the directory", gone=listener.gone),
            name="directory-reader",
            daemon=True,
        ).start()
        said = mailbox.take(self._handshake_s)
        if said == []:
            context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no join and report within {self._handshake_s:g} s"
            )
        while said is not None and context.is_active():
            yield from said
            mailbox.pause(_GATHER_S)
            said = mailbox.take(_IDLE_S)


class _Listener(Protocol):
    """Takes what a peer says."""

    def take(self, request: Any) -> None:
        """One message."""
        ...

    def gone(self) -> None:
        """The peer's stream has ended."""
        ...


class _ShardListener:
    """Listens to one shard."""

    def __init__(self, core: DirectoryCore, own: Handshake, mailbox: Newest[ShardGrant]) -> None:
        self._core = core
        self._own = own
        self._mailbox = mailbox
        self._token: int | None = None

    def take(self, request: directory_pb2.JoinShardRequest) -> None:
        kind = request.WhichOneof("kind")
        if self._token is None:
            if kind != "join":
                raise InvalidDataError("the first message of a stream must be ShardJoin")
            check(self._own, Handshake.from_proto(request.join.handshake))
            self._token = self._core.join(messages.join_from_proto(request.join), self._mailbox)
        elif kind == "report":
            self._core.report(self._token, messages.report_from_proto(request.report))
        elif kind == "leave":
            self._core.leave(self._token)
        else:
            raise InvalidDataError("a stream is opened once")

    def gone(self) -> None:
        if self._token is not None:
            self._core.shard_gone(self._token)


class _LearnerListener:
    """Listens to one learner."""

    def __init__(self, core: DirectoryCore, own: Handshake, mailbox: Newest[Followed]) -> None:
        self._core = core
        self._own = own
        self._mailbox = mailbox
        self._token: int | None = None

    def take(self, request: directory_pb2.FollowDirectoryRequest) -> None:
        kind = request.WhichOneof("kind")
        if self._token is None:
            if kind != "join":
                raise InvalidDataError("the first message of a stream must be LearnerJoin")
            check(self._own, Handshake.from_proto(request.join.handshake))
            learner_id = messages.check_name("learner_id", request.join.learner_id)
            self._token = self._core.follow(learner_id, request.join.incarnation, self._mailbox)
        elif kind == "report":
            report = request.report
            self._core.learner_reports(self._token, report.drawn, report.newest_version)
        else:
            raise InvalidDataError("a stream is opened once")

    def gone(self) -> None:
        if self._token is not None:
            self._core.learner_gone(self._token)


def _followed_to_proto(followed: Followed) -> directory_pb2.FollowDirectoryResponse:
    return directory_pb2.FollowDirectoryResponse(
        incarnation=followed.incarnation,
        view=None if followed.view is None else messages.view_to_proto(followed.view),
    )


class DirectoryEndpoint:
    """The directory of a run, ready to be served: give ``register`` and ``SERVICE`` to a server.

    Each shard and each learner takes one of the server's streams. Close it before the server is stopped.
    """

    def __init__(
        self,
        config: Config,
        own: Handshake,
        *,
        run_dir: Path | None,
        metrics: ReplayMetrics,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """Take up the totals in the run's folder. TypeError if the algorithm doesn't learn from replay."""
        self.core = DirectoryCore(config, run_dir=run_dir, run_id=own.run_id, metrics=metrics)
        servicer = DirectoryServicer(self.core, own, handshake_s=handshake_s)
        self.register: Register = partial(add_DirectoryServiceServicer_to_server, servicer)

    def close(self) -> None:
        """End all streams and save the totals. Idempotent."""
        self.core.close()
