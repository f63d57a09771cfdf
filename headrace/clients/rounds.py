"""A learner's part in rounds: one stream to the parameter server, kept open for as long as it learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc

from headrace.clients import contribution_messages
from headrace.clients.blobs import BlobAssembler, chunks_of
from headrace.clients.standing_stream import OnEvent, StandingStream
from headrace.errors import FencedError, HeadraceError
from headrace.rpc.handshake import Handshake
from headrace.sync.contribution import JOINED, REGROUP, Contribution, GroupRequest, RoundResult
from headrace.sync.layout import Layout
from headrace.sync.staleness import APPLIED, STALE
from headrace.sync.vectors import VectorType
from headrace.types import PolicyVersion
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc

WAIT_REASON = "round"

_Request = parameters_pb2.PushGradientsRequest
_Response = parameters_pb2.PushGradientsResponse


class RoundClient(StandingStream[_Request, _Response]):
    """Brings one contribution at a time and hears what became of it.

    After a lost connection it joins again. A contribution whose answer was lost is then known to be part of
    a version, or is brought again if the version it was computed from is still the newest, else it is stale.
    A member of a group then needs a new one.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        *,
        learner_id: str,
        incarnation: int,
        layout: Layout,
        have: PolicyVersion,
        vector_type: VectorType = "float32",
        rendezvous: str = "",
        on_event: OnEvent = lambda _kind, _sentence: None,
    ) -> None:
        """``have`` is the version whose parameters the learner holds; ``incarnation`` its own since it
        started."""
        super().__init__(address, name="rounds", on_event=on_event)
        self._hello = parameters_pb2.LearnerHello(
            handshake=handshake.to_proto(),
            learner_id=learner_id,
            incarnation=incarnation,
            layout=contribution_messages.layout_to_proto(layout),
            rendezvous=rendezvous,
        )
        self._size = layout.size
        self._vector_type: VectorType = vector_type
        self._have = have
        self._fenced: FencedError | None = None
        self._welcome: RoundResult | None = None  # of the stream that is open, or not heard by the caller yet
        self._request: Contribution | GroupRequest | None = None
        self._answer: RoundResult | None = None
        self._sending: Iterator[_Request] | None = None
        self._incoming: tuple[parameters_pb2.RoundResult, BlobAssembler] | None = None

    def join(self, *, timeout_s: float) -> RoundResult | None:
        """The newest version, if the caller has another; with no values if it has not.

        None if the server did not answer within ``timeout_s`` seconds. FencedError: publish first, then call
        :meth:`hold`.
        """
        with self._changed:
            self._wait_until(
                lambda: "" if self._welcome is not None or self._fenced else WAIT_REASON, timeout_s
            )
            self._raise_if_over()
            welcome = self._welcome
            if welcome is not None:
                self._have = welcome.version
                self._welcome = replace(welcome, values=None, state=None)
            return welcome

    def exchange(self, request: Contribution | GroupRequest, *, timeout_s: float) -> RoundResult | None:
        """Bring a contribution, or ask for a group, and wait for what becomes of it.

        None after ``timeout_s`` seconds: call again with the same one.

        FencedError: publish first, then call :meth:`hold`; the request is given up.
        """
        with self._changed:
            if self._request is not request:
                self._request, self._answer = request, None
                if self._welcome is not None:
                    self._begin(self._welcome, again=False)
                self._changed.notify_all()
            self._wait_until(
                lambda: "" if self._answer is not None or self._fenced else WAIT_REASON, timeout_s
            )
            self._raise_if_over()
            answer = self._answer
            if answer is not None:
                answer = self._with_values(answer)
                self._have = answer.version
                self._request = self._answer = None
                welcome = self._welcome
                if welcome is not None and welcome.version <= answer.version:
                    self._welcome = replace(welcome, version=answer.version, values=None, state=None)
            return answer

    def _with_values(self, answer: RoundResult) -> RoundResult:
        """An answer with what came before it, when the stream was opened again, and nobody has heard yet."""
        welcome = self._welcome
        unheard = welcome is not None and welcome.values is not None and welcome.version == answer.version
        if welcome is None or not unheard or answer.values is not None:
            return answer
        return replace(answer, values=welcome.values, state=welcome.state)

    def hold(self, version: PolicyVersion) -> None:
        """From now on the caller has ``version``, which it has published itself."""
        with self._changed:
            self._have, self._fenced = version, None
            self._request = self._answer = self._welcome = None

    def _raise_if_over(self) -> None:
        if self._fatal is not None:
            raise self._fatal
        if self._fenced is not None:
            raise self._fenced

    def _dial(self, channel: grpc.Channel, requests: Iterator[_Request]) -> Any:
        stub: Any = parameters_service_pb2_grpc.ParameterServiceStub(channel)  # type: ignore[no-untyped-call]
        return stub.PushGradients(requests)

    def _first(self) -> _Request:
        self._welcome = self._sending = self._incoming = None
        self._hello.have.epoch, self._hello.have.number = self._have.epoch, self._have.number
        return _Request(hello=self._hello)

    def _next(self) -> tuple[_Request | None, float]:
        if self._sending is not None:
            message = next(self._sending, None)
            if message is not None:
                return message, 0.0
            self._sending = None
        return None, 1.0

    def _hear(self, response: _Response) -> None:
        if response.WhichOneof("kind") == "result":
            self._incoming = response.result, BlobAssembler(response.result.blobs)
        elif self._incoming is not None:
            self._incoming[1].feed(response.chunk)
        if self._incoming is None or not self._incoming[1].complete:
            return
        result = contribution_messages.result_from_proto(*self._incoming, self._size)
        self._incoming = None
        if result.outcome != JOINED:
            self._answer = result
            return
        self._fenced = None
        self._welcome = result
        if self._request is not None and self._answer is None:
            self._begin(result, again=True)

    def _begin(self, welcome: RoundResult, *, again: bool) -> None:
        """A request is there and the stream is open: bring it, unless that makes no sense any more.

        ``again``: it may have been brought on a stream that was lost.
        """
        contribution = self._request
        assert contribution is not None
        if isinstance(contribution, GroupRequest):
            broken = parameters_pb2.GroupBroken(
                generation=contribution.generation, reason=contribution.reason
            )
            self._sending = iter([_Request(broken=broken)])
        elif welcome.applied_through >= contribution.sequence:
            self._answer = replace(welcome, outcome=APPLIED, detail="it is part of a version already")
        elif again and self._hello.rendezvous:
            # The group has gone on without it, or waits: what it did there counts with the others' or not.
            self._answer = replace(welcome, outcome=REGROUP)
        elif welcome.version != contribution.base:
            detail = f"computed from version {contribution.base}, which the stream to it was lost for"
            self._answer = replace(welcome, outcome=STALE, detail=detail)
        else:
            self._sending = self._messages(contribution)

    def _messages(self, contribution: Contribution) -> Iterator[_Request]:
        header, blobs = contribution_messages.contribution_to_proto(contribution, self._vector_type)
        yield _Request(contribution=header)
        for kind, blob in blobs.items():
            for chunk in chunks_of(kind, blob):
                yield _Request(chunk=chunk)

    def _gives_up(self, error: HeadraceError) -> bool:
        if isinstance(error, FencedError):
            with self._changed:
                # What was said of an older version than the caller holds by now is no news any more.
                said = self._hello.have
                if (said.epoch, said.number) == (self._have.epoch, self._have.number):
                    self._fenced = error
                    self._changed.notify_all()
            return False
        return super()._gives_up(error)
