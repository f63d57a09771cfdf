"""The rpcs of the parameter server: decode, call the core, encode. One method an rpc, in proto order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from headrace.checkpoint import VersionRecord
from headrace.clients import messages
from headrace.clients.account_messages import account_from_proto, cold_from_proto
from headrace.clients.blobs import ACTING, TRAINING, BlobAssembler, chunks_of, manifest_of
from headrace.errors import ExhaustedError, InvalidDataError
from headrace.rpc.errors import answering
from headrace.rpc.handshake import Handshake, check
from headrace.rpc.server import Register
from headrace.types import PolicyVersion, RunStatus
from headrace.v1 import common_pb2, parameters_pb2
from headrace.v1.parameters_service_pb2_grpc import (
    ParameterServiceServicer,
    RunServiceServicer,
    add_ParameterServiceServicer_to_server,
    add_RunServiceServicer_to_server,
)
from services.paramserver.core import ParameterServer
from services.paramserver.membership import Membership, index_of
from services.paramserver.metrics import ParamserverMetrics
from services.paramserver.places import Place
from services.paramserver.rounds.stream import take_part
from services.paramserver.versions import Update

if TYPE_CHECKING:
    from services.paramserver.rounds.gathering import Gathering

SERVICE_NAMES = ("headrace.v1.ParameterService", "headrace.v1.RunService")
HEARTBEAT_S = 5.0
_MAX_PROBLEMS = 20  # sentences about what does not add up
_LOOK_UP_S = 1.0  # how often a waiting stream looks whether its client is still there


class ParameterServicer(ParameterServiceServicer):
    """Versions out and in. ``_lock`` guards the number of watchers."""

    def __init__(
        self,
        core: ParameterServer,
        handshake: Handshake,
        *,
        max_watchers: int,
        metrics: ParamserverMetrics,
        draining: Callable[[], bool],
        gathering: Gathering | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``gathering``: where learners meet for rounds; None: the one learner publishes by itself."""
        self._core = core
        self._gathering = gathering
        self._handshake = handshake
        self._max_watchers = max_watchers
        self._metrics = metrics
        self._draining = draining
        self._clock = clock
        self._lock = threading.Lock()
        self._watchers = 0

    def WatchVersions(
        self, request: parameters_pb2.WatchVersionsRequest, context: grpc.ServicerContext
    ) -> Iterator[parameters_pb2.WatchVersionsResponse]:
        """Send what is newer than the watcher has, whenever it is ready for it."""
        with answering(context):
            _greet(self._handshake, request.handshake)
            have = messages.version_from_proto(request.have) if request.HasField("have") else None
            with self._counted():
                yield from self._watch(have, context)

    def PublishVersion(
        self, request_iterator: Iterator[parameters_pb2.PublishVersionRequest], context: grpc.ServicerContext
    ) -> parameters_pb2.PublishVersionResponse:
        """Take a version in and issue its number."""
        with answering(context):
            started = self._clock()
            update = self._receive(request_iterator)
            if self._gathering is not None:
                update = self._gathering.completed(update)
            answer = self._core.publish(update)
            self._metrics.publish_seconds.observe(self._clock() - started)
            return parameters_pb2.PublishVersionResponse(
                version=messages.version_to_proto(answer.version),
                want_training_blob=answer.want_training,
                run_state=messages.status_to_proto(answer.status),
            )

    def FetchVersion(
        self, request: parameters_pb2.FetchVersionRequest, context: grpc.ServicerContext
    ) -> Iterator[parameters_pb2.FetchVersionResponse]:
        """The newest version with its blobs."""
        with answering(context):
            _greet(self._handshake, request.handshake)
            record = self._core.fetch()
            if record is None:
                yield parameters_pb2.FetchVersionResponse(manifest=parameters_pb2.VersionManifest())
                return
            blobs = {ACTING: record.acting}
            if request.with_training_blob and record.training is not None:
                blobs[TRAINING] = record.training
            manifest = _manifest(record)
            manifest.blobs.extend(manifest_of(kind, blob) for kind, blob in blobs.items())
            yield parameters_pb2.FetchVersionResponse(manifest=manifest)
            for kind, blob in blobs.items():
                for chunk in chunks_of(kind, blob):
                    yield parameters_pb2.FetchVersionResponse(chunk=chunk)

    def PushGradients(
        self, request_iterator: Iterator[parameters_pb2.PushGradientsRequest], context: grpc.ServicerContext
    ) -> Iterator[parameters_pb2.PushGradientsResponse]:
        """One learner's part in all rounds, for as long as its stream lasts."""
        if self._gathering is None:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                "this run has one learner, which publishes its versions itself; gradients are not taken",
            )
            raise AssertionError("abort raises")
        with answering(context):
            yield from take_part(self._gathering, self._handshake, request_iterator, context)

    def _watch(
        self, have: PolicyVersion | None, context: grpc.ServicerContext
    ) -> Iterator[parameters_pb2.WatchVersionsResponse]:
        known: RunStatus | None = None
        spoke_at = self._clock()
        while context.is_active() and not self._draining():
            record, status = self._core.wait(have, known, _LOOK_UP_S)
            if record is not None:
                yield from self._send(record)
                if have is not None:
                    self._metrics.skipped_versions.inc(max(0, record.version.number - have.number - 1))
                have, spoke_at = record.version, self._clock()
            changed = known is None or (known.phase, known.reason) != (status.phase, status.reason)
            if changed or self._clock() - spoke_at >= HEARTBEAT_S - _LOOK_UP_S:
                yield parameters_pb2.WatchVersionsResponse(run_state=messages.status_to_proto(status))
                known, spoke_at = status, self._clock()

    def _send(self, record: VersionRecord) -> Iterator[parameters_pb2.WatchVersionsResponse]:
        manifest = _manifest(record)
        manifest.blobs.append(manifest_of(ACTING, record.acting))
        yield parameters_pb2.WatchVersionsResponse(manifest=manifest)
        for chunk in chunks_of(ACTING, record.acting):
            yield parameters_pb2.WatchVersionsResponse(chunk=chunk)
            self._metrics.sent_bytes.inc(len(chunk.data))
        self._metrics.sent_versions.inc()

    def _receive(self, requests: Iterator[parameters_pb2.PublishVersionRequest]) -> Update:
        first = next(requests, None)
        if first is None or first.WhichOneof("kind") != "header":
            raise InvalidDataError("a publish must begin with its header")
        header = first.header
        _greet(self._handshake, header.handshake)
        assembler = BlobAssembler(header.blobs)
        for request in requests:
            assembler.feed(request.chunk)
        acting = assembler.take(ACTING)
        if acting is None:
            raise InvalidDataError("a publish must carry the acting blob")
        return Update(
            base=messages.version_from_proto(header.base) if header.HasField("base") else None,
            report=messages.report_from_proto(header.report),
            accounts=messages.accounts_from_proto(header.accounts),
            acting=acting,
            training=assembler.take(TRAINING),
        )

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            if self._watchers >= self._max_watchers:
                raise ExhaustedError(
                    f"all {self._max_watchers} places for watchers are taken (paramserver.max_watchers)"
                )
            self._watchers += 1
            self._metrics.watchers.set(self._watchers)
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1
                self._metrics.watchers.set(self._watchers)


class RunServicer(RunServiceServicer):
    """Where the run is, how to end it, how good its versions are."""

    def __init__(self, core: ParameterServer, membership: Membership, handshake: Handshake) -> None:
        self._core = core
        self._membership = membership
        self._handshake = handshake

    def GetRunState(
        self, request: parameters_pb2.GetRunStateRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.GetRunStateResponse:
        """The run at a glance."""
        return messages.view_to_proto(self._core.view())

    def StopRun(
        self, request: parameters_pb2.StopRunRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.StopRunResponse:
        """End the run."""
        with answering(context):
            _greet(self._handshake, request.handshake)
            phase = messages.phase_from_proto(request.phase)
            if phase != "interrupted" and phase != "failed":
                raise InvalidDataError(f"a run can be ended as interrupted or failed, not as {phase}")
            status = self._core.stop(phase, request.reason)
            return parameters_pb2.StopRunResponse(run_state=messages.status_to_proto(status))

    def BeginEvaluation(
        self, request: parameters_pb2.BeginEvaluationRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.BeginEvaluationResponse:
        """Keep a version until its result is in."""
        with answering(context):
            _greet(self._handshake, request.handshake)
            kept = self._core.begin_evaluation(messages.version_from_proto(request.version))
            return parameters_pb2.BeginEvaluationResponse(kept=kept)

    def ReportEvaluation(
        self, request: parameters_pb2.ReportEvaluationRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.ReportEvaluationResponse:
        """Take in the result of an evaluation."""
        with answering(context):
            _greet(self._handshake, request.handshake)
            evaluation = messages.evaluation_from_proto(request.evaluation)
            is_best, status = self._core.report_evaluation(evaluation)
            return parameters_pb2.ReportEvaluationResponse(
                is_best=is_best, run_state=messages.status_to_proto(status)
            )

    def JoinRun(
        self, request: parameters_pb2.JoinRunRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.JoinRunResponse:
        """Give a sampler its place."""
        with answering(context):
            _greet(self._handshake, request.handshake)
            place = self._membership.join(request.name, request.instance)
            return parameters_pb2.JoinRunResponse(
                sampler=messages.identity_to_proto(place.identity), index=place.index, learner=place.learner
            )

    def ReportAccounts(
        self, request: parameters_pb2.ReportAccountsRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.ReportAccountsResponse:
        """Take accounts in."""
        with answering(context):
            _greet(self._handshake, request.handshake)
            accounts = [account_from_proto(account) for account in request.samplers]
            learner = self._membership.report(_place_of(request), accounts)
            if request.cold:
                cold = [cold_from_proto(account) for account in request.cold]
                self._membership.report_cold(request.partition, cold)
            return parameters_pb2.ReportAccountsResponse(learner=learner)

    def GetLedger(
        self, request: parameters_pb2.GetLedgerRequest, context: grpc.ServicerContext
    ) -> parameters_pb2.GetLedgerResponse:
        """Where everything is, and who is there."""
        ledger = self._membership.ledger(self._core.view())
        totals: Any = ledger.totals()
        answer = parameters_pb2.GetLedgerResponse(
            problems=ledger.problems[:_MAX_PROBLEMS], incarnations=len(ledger.rows), **totals
        )
        for member in self._membership.members():
            answer.members.add(
                id=member.place.identity.sampler_id,
                incarnation=member.place.identity.incarnation,
                name=member.place.name,
                learner=member.place.learner,
                silent_seconds=member.silent_s,
                produced=member.produced,
            )
        return answer


def _place_of(request: parameters_pb2.ReportAccountsRequest) -> Place | None:
    """What a sampler says of its place; None: it did not join."""
    if not request.HasField("sampler"):
        return None
    identity = messages.identity_from_proto(request.sampler)
    return Place(index_of(identity), identity, request.name, request.instance, request.learner, 0.0)


def registrations(parameters: ParameterServicer, run: RunServicer) -> tuple[Register, ...]:
    """What a server is given to serve both."""
    return (
        partial(add_ParameterServiceServicer_to_server, parameters),
        partial(add_RunServiceServicer_to_server, run),
    )


def _greet(own: Handshake, theirs: common_pb2.Handshake) -> None:
    check(own, Handshake.from_proto(theirs))


def _manifest(record: VersionRecord) -> Any:
    """Everything about a version but its blobs."""
    return parameters_pb2.VersionManifest(
        version=messages.version_to_proto(record.version),
        config_digest=record.config_digest,
        report=messages.report_to_proto(record.report),
        accounts=messages.accounts_to_proto(record.accounts),
    )
