"""The run itself: where it is, how to end it, how good its versions are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import grpc
import numpy as np

from headrace.clients import messages
from headrace.clients.account_messages import glance_from_proto
from headrace.clients.retry import Result, call_until_answered
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import open_channel
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import error_of
from headrace.rpc.handshake import Handshake
from headrace.types import Evaluation, LedgerGlance, PolicyVersion, RunStatus, RunView
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc

_BACKOFF_S = (0.05, 2.0)
_ATTEMPT_TIMEOUT_S = 10.0


class RunClient:
    """Asks and tells the parameter server about the run. Safe to use from several threads.

    ``wait(seconds)`` sleeps between attempts and is true once the caller wants to give up.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        *,
        wait: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: np.random.Generator | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """``credentials`` None: those of this process."""
        self._handshake = handshake.to_proto()
        self._wait = wait or threading.Event().wait
        self._clock = clock
        self._rng = rng or np.random.default_rng()
        self._channel = open_channel(address, credentials)
        self._stub: Any = parameters_service_pb2_grpc.RunServiceStub(self._channel)  # type: ignore[no-untyped-call]

    def state(self, *, timeout_s: float = 2.0) -> RunView:
        """The run at a glance. One attempt: UnavailableError if the server can't be reached."""
        try:
            answer = self._stub.GetRunState(parameters_pb2.GetRunStateRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of(error) from error
        return messages.view_from_proto(answer)

    def ledger(self, *, timeout_s: float = 5.0) -> LedgerGlance:
        """Where every transition is. One attempt: UnavailableError if the server can't be reached."""
        try:
            answer = self._stub.GetLedger(parameters_pb2.GetLedgerRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of(error) from error
        return glance_from_proto(answer)

    def stop(
        self, phase: Literal["interrupted", "failed"], reason: str, *, timeout_s: float | None = 10.0
    ) -> RunStatus:
        """End the run; the first reason stays. Retries for ``timeout_s`` seconds."""
        request = parameters_pb2.StopRunRequest(
            handshake=self._handshake, phase=messages.phase_to_proto(phase), reason=reason
        )
        answer = self._until_answered(
            lambda: self._stub.StopRun(request, timeout=_ATTEMPT_TIMEOUT_S), timeout_s
        )
        return messages.status_from_proto(answer.run_state)

    def begin_evaluation(self, version: PolicyVersion, *, timeout_s: float | None = 60.0) -> bool:
        """Have the server keep ``version`` until its result is in. False: it no longer has it.

        Retries for ``timeout_s`` seconds.
        """
        request = parameters_pb2.BeginEvaluationRequest(
            handshake=self._handshake, version=messages.version_to_proto(version)
        )
        answer = self._until_answered(
            lambda: self._stub.BeginEvaluation(request, timeout=_ATTEMPT_TIMEOUT_S), timeout_s
        )
        return bool(answer.kept)

    def report_evaluation(self, evaluation: Evaluation, *, timeout_s: float | None = 60.0) -> bool:
        """Hand in a result. True if it is the best so far. Retries for ``timeout_s`` seconds.

        ``env_steps`` of the evaluation may be left at 0: the server knows them.
        """
        request = parameters_pb2.ReportEvaluationRequest(
            handshake=self._handshake, evaluation=messages.evaluation_to_proto(evaluation)
        )
        answer = self._until_answered(
            lambda: self._stub.ReportEvaluation(request, timeout=_ATTEMPT_TIMEOUT_S), timeout_s
        )
        return bool(answer.is_best)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _until_answered(self, attempt: Callable[[], Result], timeout_s: float | None) -> Result:
        return call_until_answered(
            attempt,
            backoff=Backoff(*_BACKOFF_S, self._rng),
            wait=self._wait,
            timeout_s=timeout_s,
            clock=self._clock,
        )
