"""Coming to a run as a sampler, and keeping one's place there: about once a second all accounts are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from headrace.clients.account_messages import account_to_proto, cold_to_proto
from headrace.clients.messages import identity_from_proto, identity_to_proto
from headrace.clients.retry import call_until_answered
from headrace.clients.watching import OnEvent, nobody_listens
from headrace.cold_accounts import ColdCounts
from headrace.errors import HeadraceError, InvalidDataError
from headrace.flow.ledger import SamplerAccount
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import open_channel
from headrace.rpc.errors import error_of, is_fatal
from headrace.rpc.handshake import Handshake
from headrace.types import SamplerIdentity
from headrace.v1 import parameters_pb2, parameters_service_pb2_grpc

INTERVAL_S = 1.0
_ATTEMPT_TIMEOUT_S = 5.0
_BACKOFF_S = (0.2, 5.0)
_MAX_ACCOUNTS = 1000  # in one report


@dataclass(frozen=True, slots=True)
class Seat:
    """What a sampler was given: its number, who it is from now on, the number of its learner.

    ``name`` and ``instance`` are what it had come with.
    """

    index: int
    identity: SamplerIdentity
    learner: int
    name: str
    instance: str


def join_run(
    address: str,
    handshake: Handshake,
    *,
    name: str,
    instance: str,
    wait: Callable[[float], bool],
    on_event: OnEvent = nobody_listens,
) -> Seat:
    """Ask the paramserver for a place, until there is one.

    ``name`` is what people call this process, ``instance`` is drawn anew at each of its starts.
    ``wait(seconds)`` waits between attempts and is true once it should give up: then UnavailableError or
    ExhaustedError is raised. HandshakeError: the two ends don't belong together.
    """
    request = parameters_pb2.JoinRunRequest(handshake=handshake.to_proto(), name=name, instance=instance)
    with open_channel(address) as channel:
        stub: Any = parameters_service_pb2_grpc.RunServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = call_until_answered(
            lambda: stub.JoinRun(request, timeout=_ATTEMPT_TIMEOUT_S),
            backoff=Backoff(*_BACKOFF_S, np.random.default_rng()),
            wait=wait,
            on_retry=lambda error: on_event("join_waits", str(error)),
        )
    return Seat(answer.index, identity_from_proto(answer.sampler), answer.learner, name, instance)


class AccountReporter:
    """Tells the paramserver the accounts of one process, in a thread of its own.

    ``fatal`` and ``unseated`` are set by that thread and only ever once.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        *,
        name: str,
        seat: Seat | None = None,
        samplers: Callable[[], Sequence[SamplerAccount]] = tuple,
        cold: Callable[[], Sequence[tuple[SamplerIdentity, ColdCounts]]] = tuple,
        partition: int = 0,
        interval_s: float = INTERVAL_S,
        on_event: OnEvent = nobody_listens,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``samplers`` and ``cold`` are asked each time; ``seat`` is kept by it. Does nothing before
        :meth:`start`."""
        self._handshake = handshake.to_proto()
        self._name = name
        self._seat = seat
        self._samplers = samplers
        self._cold = cold
        self._partition = partition
        self._interval_s = interval_s
        self._on_event = on_event
        self._clock = clock
        self._channel = open_channel(address)
        self._stub: Any = parameters_service_pb2_grpc.RunServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._stopped = threading.Event()
        self._out_of_touch = False
        self._closed = False
        self.num_told = 0
        """Reports that were heard."""
        self.fatal: HeadraceError | None = None
        """Why the paramserver will never listen; None while it may."""
        self.unseated: str = ""
        """Why this sampler has to drain and join anew; empty while its place is as it was."""
        self._thread = threading.Thread(target=self._run, name="account-reporter", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Report once more, and end. Idempotent. False: it was not told within ``timeout_s`` seconds."""
        if self._closed:
            return True
        self._closed = True
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(_ATTEMPT_TIMEOUT_S)
        deadline = self._clock() + timeout_s
        backoff = Backoff(*_BACKOFF_S, np.random.default_rng())
        told = self._report()
        while not told and self.fatal is None and self._clock() < deadline:
            time.sleep(min(backoff.next_s(), max(0.0, deadline - self._clock())))
            told = self._report()
        self._channel.close()
        return told

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s) and self.fatal is None:
            self._report()

    def _report(self) -> bool:
        """Tell everything as it is now. False if nobody has heard it."""
        try:
            for request in self._requests():
                answer = self._stub.ReportAccounts(request, timeout=_ATTEMPT_TIMEOUT_S)
                self._hear(answer)
        except grpc.RpcError as raw:
            error = error_of(raw)
            if is_fatal(error) or isinstance(error, InvalidDataError):
                self.fatal = error
                self.unseated = self.unseated or str(error)
            if not self._out_of_touch:  # once an outage, not once a try
                self._out_of_touch = True
                self._on_event("accounts_not_told", f"{error}; trying again until it answers")
            return False
        self._out_of_touch = False
        self.num_told += 1
        return True

    def _requests(self) -> list[parameters_pb2.ReportAccountsRequest]:
        samplers = [account_to_proto(account) for account in self._samplers()]
        cold = [cold_to_proto(sampler, counts) for sampler, counts in self._cold()]
        starts = range(0, max(len(samplers), len(cold), 1), _MAX_ACCOUNTS)
        seat = self._seat
        return [
            parameters_pb2.ReportAccountsRequest(
                handshake=self._handshake,
                name=self._name,
                instance="" if seat is None else seat.instance,
                samplers=samplers[start : start + _MAX_ACCOUNTS],
                cold=cold[start : start + _MAX_ACCOUNTS],
                partition=self._partition,
                sampler=None if seat is None else identity_to_proto(seat.identity),
                learner=0 if seat is None else seat.learner,
            )
            for start in starts
        ]

    def _hear(self, answer: parameters_pb2.ReportAccountsResponse) -> None:
        seat = self._seat
        if seat is None or self._stopped.is_set() or self.unseated:
            return
        if not answer.HasField("learner"):
            self.unseated = f"{seat.identity} has lost its place: it was silent for too long"
        elif answer.learner != seat.learner:
            self.unseated = f"learner {answer.learner} has fewer samplers than learner {seat.learner}"
