"""The directory of replay: a shard's membership, what a learner follows, and a glance for people."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np

from headrace.clients import directory_messages as messages
from headrace.clients.standing_stream import OnEvent, StandingStream
from headrace.replay.limiter import UNLIMITED
from headrace.replay.members import (
    MIN_SIZE,
    DirectoryGlance,
    DirectoryView,
    EpisodeResult,
    ShardGrant,
    ShardIdentity,
    ShardReport,
    ShardStatus,
)
from headrace.replay.reporting import ReportRule
from headrace.rpc.channel import open_channel
from headrace.rpc.errors import error_of
from headrace.rpc.handshake import Handshake
from headrace.v1 import directory_pb2, directory_service_pb2_grpc

CONNECTION = "connection"
CREDIT = "credit"

_MAX_RESULTS = 100  # of episodes that wait to be reported; the directory shows no more
_HEARTBEAT_SHARE = 0.25  # of the lease
_HEARTBEAT_S = 1.0


def _ignore(_kind: str, _sentence: str) -> None:
    """Nobody listens."""


class ShardMembership(StandingStream[directory_pb2.JoinShardRequest, directory_pb2.JoinShardResponse]):
    """Keeps one shard in the directory, and says whether its sampler may insert more. Thread-safe.

    A report is sent at once when it may bring leave that is needed, after ``rebalance_every`` transitions
    inserted or drawn, or when the mass has changed by the share ``rebalance_drift``; otherwise once a
    second. Only the newest state is ever sent. Without the directory the shard goes on as long as its leave
    lasts.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        shard: ShardIdentity,
        *,
        rebalance_every: int,
        rebalance_drift: float,
        outage_s: float,
        clock: Callable[[], float] = time.monotonic,
        rng: np.random.Generator | None = None,
        on_event: OnEvent = _ignore,
    ) -> None:
        super().__init__(address, name="shard-membership", clock=clock, rng=rng, on_event=on_event)
        self._handshake = handshake
        self._shard = shard
        self._rule = ReportRule(rebalance_every, rebalance_drift, shard.fragment_transitions)
        self._heartbeat_s = min(_HEARTBEAT_S, _HEARTBEAT_SHARE * outage_s)
        self._status = ShardStatus()
        self._grant = ShardGrant()
        self._allowance = 0
        self._episodes = 0
        self._results: deque[EpisodeResult] = deque(maxlen=_MAX_RESULTS)
        self._sent: ShardReport | None = None
        self._sent_at = 0.0
        self._reason = ""

    def report(self, status: ShardStatus) -> None:
        """The shard's state as it is now. Never blocks."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def episodes(self, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Training episodes that have finished. Never blocks; they ride along with the next report."""
        with self._changed:
            for episode_return, length in zip(returns, lengths, strict=True):
                self._results.append(EpisodeResult(self._episodes, float(episode_return), int(length)))
                self._episodes += 1

    def acquire(self, transitions: int, timeout_s: float) -> bool:
        """Wait for leave to insert so many transitions more than are reported as inserted.

        False after ``timeout_s`` seconds, or once ``fatal`` is set. Leave isn't used up by asking: report
        each insert before asking for the next one.
        """
        with self._changed:
            return self._wait_until(lambda: self._blocked_by(transitions), timeout_s)

    @property
    def throttled_by(self) -> str:
        """Why the directory gives no more leave: "samples_per_insert"; "" if it does."""
        with self._changed:
            return self._grant.throttled_by

    def leave(self, reason: str, timeout_s: float) -> bool:
        """Send the newest state, leave in order, end. False if ``timeout_s`` seconds weren't enough."""
        with self._changed:
            self._reason = reason
            self._leaving = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        left = not self._thread.is_alive()
        self.close()
        return left

    def _blocked_by(self, transitions: int) -> str:
        if self._status.inserted + transitions <= self._allowance:
            return ""
        if not self._connected:
            return CONNECTION
        return self._grant.throttled_by or CREDIT

    def _dial(self, channel: grpc.Channel, requests: Iterator[directory_pb2.JoinShardRequest]) -> Any:
        stub: Any = directory_service_pb2_grpc.DirectoryServiceStub(channel)  # type: ignore[no-untyped-call]
        return stub.JoinShard(requests)

    def _first(self) -> directory_pb2.JoinShardRequest:
        self._sent = None
        return directory_pb2.JoinShardRequest(join=messages.join_to_proto(self._shard, self._handshake))

    def _next(self) -> tuple[directory_pb2.JoinShardRequest | None, float]:
        wait_s = self._sent_at + self._heartbeat_s - self._clock()
        if wait_s > 0 and not self._is_urgent():
            return None, wait_s
        self._sent, self._sent_at = self._newest_report(), self._clock()
        return directory_pb2.JoinShardRequest(report=messages.report_to_proto(self._sent)), 0.0

    def _newest_report(self) -> ShardReport:
        return ShardReport(self._status, self._episodes, tuple(self._results), self._allowance)

    def _is_urgent(self) -> bool:
        if self._sent is None or (self._leaving and self._newest_report() != self._sent):
            return True
        left = self._allowance - self._status.inserted
        return self._rule.tells_news(self._sent.status, self._status, left)

    def _last(self) -> directory_pb2.JoinShardRequest:
        return directory_pb2.JoinShardRequest(leave=directory_pb2.ShardLeave(reason=self._reason))

    def _hear(self, response: directory_pb2.JoinShardResponse) -> None:
        self._grant = messages.grant_from_proto(response)
        self._allowance = max(self._allowance, self._grant.insert_allowance)
        while self._results and self._results[0].number < self._grant.episodes:
            self._results.popleft()


class DirectoryFollower(
    StandingStream[directory_pb2.FollowDirectoryRequest, directory_pb2.FollowDirectoryResponse]
):
    """Keeps the newest view at hand, and says whether the learner may draw more. Thread-safe.

    While the directory can't be reached the learner goes on with the last view, for as long as its leave
    and one more tolerance last.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        learner_id: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: np.random.Generator | None = None,
        on_event: OnEvent = _ignore,
    ) -> None:
        super().__init__(address, name="directory-follower", clock=clock, rng=rng, on_event=on_event)
        self._handshake = handshake
        self._learner_id = learner_id
        self._incarnation = 0
        self._view: DirectoryView | None = None
        self._drawn = 0
        self._newest_version = 0
        self._sent: tuple[int, int] | None = None

    def view(self) -> DirectoryView | None:
        """The newest view; None before the first."""
        with self._changed:
            return self._view

    def wait_change(self, than: DirectoryView | None, timeout_s: float) -> DirectoryView | None:
        """The newest view when it is not ``than``; ``than`` after ``timeout_s`` seconds, or once over."""
        with self._changed:
            self._changed.wait_for(lambda: self._view is not than or self._over, timeout_s)
            return self._view

    def acquire(self, samples: int, timeout_s: float) -> bool:
        """Wait for leave to draw so many items, and take it: they count as drawn from now on.

        False after ``timeout_s`` seconds, or once ``fatal`` is set. Reasons to wait: "connection" (no view
        yet, or none any more), "min_size_to_sample", "samples_per_insert".
        """
        with self._changed:
            granted = self._wait_until(lambda: self._blocked_by(samples), timeout_s)
            if granted:
                self._drawn += samples
                self._changed.notify_all()
            return granted

    def give_back(self, samples: int) -> None:
        """Items that leave was taken for were not drawn after all, because their shard is gone.

        What was reported meanwhile stays counted: the next leave comes out of it.
        """
        with self._changed:
            self._drawn -= samples
            self._changed.notify_all()

    def report(self, newest_version: int) -> None:
        """Number of the newest version that the learner has published. Never blocks."""
        with self._changed:
            self._newest_version = newest_version
            self._changed.notify_all()

    @property
    def drawn(self) -> int:
        """Items that leave was taken for, in this process."""
        with self._changed:
            return self._drawn

    def _blocked_by(self, samples: int) -> str:
        view = self._view
        if view is None:
            return CONNECTION
        allowance = view.sample_allowance
        if not self._connected and view.throttled_by != MIN_SIZE:
            allowance = min(UNLIMITED, allowance + view.outage_samples)
        if self._drawn + samples <= allowance:
            return ""
        return (view.throttled_by or CREDIT) if self._connected else CONNECTION

    def _dial(self, channel: grpc.Channel, requests: Iterator[directory_pb2.FollowDirectoryRequest]) -> Any:
        stub: Any = directory_service_pb2_grpc.DirectoryServiceStub(channel)  # type: ignore[no-untyped-call]
        return stub.FollowDirectory(requests)

    def _first(self) -> directory_pb2.FollowDirectoryRequest:
        self._sent = None
        join = directory_pb2.LearnerJoin(
            handshake=self._handshake.to_proto(), learner_id=self._learner_id, incarnation=self._incarnation
        )
        return directory_pb2.FollowDirectoryRequest(join=join)

    def _next(self) -> tuple[directory_pb2.FollowDirectoryRequest | None, float]:
        state = (self._drawn, self._newest_version)
        if state == self._sent:
            return None, _HEARTBEAT_S
        self._sent = state
        report = directory_pb2.LearnerReport(drawn=self._drawn, newest_version=self._newest_version)
        return directory_pb2.FollowDirectoryRequest(report=report), 0.0

    def _hear(self, response: directory_pb2.FollowDirectoryResponse) -> None:
        self._incarnation = response.incarnation
        if response.HasField("view"):
            self._view = messages.view_from_proto(response.view)


def glance(address: str, *, timeout_s: float = 2.0) -> DirectoryGlance:
    """Replay as it is now, for people. One attempt: UnavailableError if the directory can't be reached."""
    with open_channel(address) as channel:
        stub: Any = directory_service_pb2_grpc.DirectoryServiceStub(channel)  # type: ignore[no-untyped-call]
        try:
            answer = stub.GetDirectory(directory_pb2.GetDirectoryRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_of(error) from error
        return messages.glance_from_proto(answer)
