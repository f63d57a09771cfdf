"""One shard of replay from afar: its sample stream, kept open, and priorities on their way back."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from headrace.codec.samples import SampleAssembler, SampleReply
from headrace.errors import CodecError, HeadraceError, UnavailableError
from headrace.rpc.backoff import Backoff
from headrace.rpc.channel import open_channel
from headrace.rpc.errors import error_of, is_fatal
from headrace.rpc.handshake import Handshake
from headrace.types import Sample
from headrace.v1 import replay_pb2

_SAMPLE = "/headrace.v1.ReplayShardService/Sample"
_UPDATE = "/headrace.v1.ReplayShardService/UpdatePriorities"
_BACKOFF_S = (0.05, 1.0)
_CONNECT_S = 5.0
_MAX_UPDATES_WAITING = 64
_UPDATE_TIMEOUT_S = 5.0
_KEYS_PER_CALL = 65536  # 768 KiB

Check = Callable[[Sample], str]
"""Says what is wrong with a sample; empty: nothing."""


class ShardClient:
    """Draws from one shard. Broken connections are opened again, with backoff, until closed.

    ``_changed`` guards everything below it and is notified when an answer arrives or the stream breaks.
    ``fatal`` says why it gave up: the two ends don't belong together.
    """

    def __init__(
        self,
        address: str,
        handshake: Handshake,
        *,
        max_bytes: int,
        check: Check = lambda _sample: "",
        rng: np.random.Generator | None = None,
    ) -> None:
        """``max_bytes`` bounds one answer."""
        self.address = address
        self._handshake = handshake
        self._max_bytes = max_bytes
        self._check = check
        self._backoff = Backoff(*_BACKOFF_S, rng or np.random.default_rng())
        self._channel = open_channel(address)
        self._update = self._channel.unary_unary(
            _UPDATE,
            request_serializer=replay_pb2.UpdatePrioritiesRequest.SerializeToString,
            response_deserializer=replay_pb2.UpdatePrioritiesResponse.FromString,
        )
        self._changed = threading.Condition()
        self._requests: queue.SimpleQueue[replay_pb2.SampleRequest | None] = queue.SimpleQueue()
        self._call: Any = None
        self._open = False
        self._closed = False
        self._next_id = 1
        self._asked: set[int] = set()
        self._answers: dict[int, SampleReply] = {}
        self._updates: queue.Queue[tuple[npt.NDArray[Any], npt.NDArray[Any]] | None] = queue.Queue(
            _MAX_UPDATES_WAITING
        )
        self.fatal: HeadraceError | None = None
        self.refused = 0
        """Answers that were refused at the door."""
        self.priorities: Counter[str] = Counter()
        """What became of priorities, by outcome; "unsent": the queue was full or the shard gone."""
        self._threads = [
            threading.Thread(target=self._hold, name="shard-samples", daemon=True),
            threading.Thread(target=self._send_updates, name="shard-priorities", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def ready(self) -> bool:
        """Whether its stream is open, as far as is known."""
        with self._changed:
            return self._open

    def ask(self, num_items: int, newest_version: int) -> int:
        """Ask for items; returns the request's id, -1 if the stream isn't open. Never blocks."""
        with self._changed:
            if not self._open:
                return -1
            request_id, self._next_id = self._next_id, self._next_id + 1
            self._asked.add(request_id)
            draw = replay_pb2.Draw(
                request_id=request_id, num_items=num_items, newest_version=max(0, newest_version)
            )
            self._requests.put(replay_pb2.SampleRequest(draw=draw))
            return request_id

    def answer(self, request_id: int, timeout_s: float) -> SampleReply | None:
        """The answer to a request; None if the stream broke or ``timeout_s`` passed: then it never comes."""
        with self._changed:
            self._changed.wait_for(
                lambda: request_id in self._answers or request_id not in self._asked, timeout_s
            )
            self._asked.discard(request_id)
            return self._answers.pop(request_id, None)

    def update_priorities(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating]) -> None:
        """Send priorities back, in the background."""
        try:
            self._updates.put_nowait((keys, priorities))
        except queue.Full:
            self.priorities["unsent"] += len(keys)

    def close(self) -> None:
        """Let go. Idempotent."""
        with self._changed:
            self._closed = True
            call = self._call
            self._changed.notify_all()
        self._requests.put(None)
        with contextlib.suppress(queue.Full):  # then the thread is busy, and looks at _closed after its call
            self._updates.put_nowait(None)
        if call is not None:
            call.cancel()
        self._channel.close()

    # The thread that holds the stream.

    def _hold(self) -> None:
        while not self._closed:
            try:
                error: HeadraceError = self._follow_stream()
            except grpc.RpcError as raw:
                error = error_of(raw)
            except grpc.FutureTimeoutError:
                error = UnavailableError(f"{self.address} can't be reached")
            except ValueError:  # the channel was closed under us
                return
            except CodecError as broken:
                error = broken
            with self._changed:
                self._open = False
                self._asked.clear()
                self._answers.clear()
                if is_fatal(error):
                    self.fatal = error
                self._changed.notify_all()
                if self._closed or self.fatal is not None:
                    return
                self._changed.wait_for(lambda: self._closed, self._backoff.next_s())

    def _follow_stream(self) -> HeadraceError:
        requests: queue.SimpleQueue[replay_pb2.SampleRequest | None] = queue.SimpleQueue()
        requests.put(replay_pb2.SampleRequest(open=self._handshake.to_proto()))
        stream = self._channel.stream_stream(
            _SAMPLE,
            request_serializer=replay_pb2.SampleRequest.SerializeToString,
            response_deserializer=None,
        )
        grpc.channel_ready_future(self._channel).result(timeout=_CONNECT_S)
        call: Any = stream(_until_none(requests))
        with self._changed:
            self._requests, self._call, self._open = requests, call, True
            self._changed.notify_all()
        assembler = SampleAssembler(self._max_bytes)
        try:
            for data in call:
                reply = assembler.feed(data)
                if reply is not None:
                    self._backoff.reset()
                    self._take(reply)
        finally:
            requests.put(None)
            call.cancel()
        return HeadraceError("the shard ended the stream")

    def _take(self, reply: SampleReply) -> None:
        problem = self._check(reply.sample) if reply.sample is not None else ""
        with self._changed:
            if problem:
                self.refused += 1
                self._asked.discard(reply.request_id)
            elif reply.request_id in self._asked:
                self._answers[reply.request_id] = reply
            self._changed.notify_all()

    # The thread that sends priorities.

    def _send_updates(self) -> None:
        while not self._closed:
            waiting = self._updates.get()
            if waiting is None:
                return
            keys, priorities = waiting
            for begin in range(0, len(keys), _KEYS_PER_CALL):
                part = slice(begin, begin + _KEYS_PER_CALL)
                self._send(keys[part], priorities[part])

    def _send(self, keys: npt.NDArray[Any], priorities: npt.NDArray[Any]) -> None:
        request = replay_pb2.UpdatePrioritiesRequest(
            handshake=self._handshake.to_proto(),
            keys=keys.astype("<i8").tobytes(),
            priorities=priorities.astype("<f4").tobytes(),
        )
        try:
            outcome = self._update(request, timeout=_UPDATE_TIMEOUT_S)
        except (grpc.RpcError, ValueError):  # the shard is gone, and its items with it
            self.priorities["unsent"] += len(keys)
            return
        self.priorities.update(
            {"applied": outcome.applied, "ignored": outcome.ignored, "refused": outcome.refused}
        )


def _until_none(
    requests: queue.SimpleQueue[replay_pb2.SampleRequest | None],
) -> Iterator[replay_pb2.SampleRequest]:
    while (request := requests.get()) is not None:
        yield request
