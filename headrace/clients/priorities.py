"""Priorities on their way back to a shard: in the background, in order, with a bound."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import replace

import grpc
import numpy as np
import numpy.typing as npt

from headrace.clients.retry import call_until_answered
from headrace.codec.samples import pack_priorities
from headrace.errors import HeadraceError
from headrace.rpc.backoff import Backoff
from headrace.rpc.handshake import Handshake
from headrace.v1 import replay_pb2

METHOD = "/headrace.v1.ReplayShardService/UpdatePriorities"
_BACKOFF_S = (0.05, 1.0)
GIVE_UP_S = 5.0
_JOIN_S = 5.0
_KEYS_PER_CALL = 65536  # 768 KiB
_MAX_WAITING = 2**20  # keys; the oldest are given up first, as newer ones mean more

Update = tuple[npt.NDArray[np.int64], npt.NDArray[np.floating]]


class PrioritySender:
    """Sends what is put in, in order; updates that wait together leave together.

    A shard that can't be reached for ``give_up_s`` seconds: what was to be sent is given up, and counted.
    ``_changed`` guards everything. The thread begins with the first update.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        handshake: Handshake,
        rng: np.random.Generator,
        *,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        # The stream has compared everything at length; here it is enough to say who we are.
        self._handshake = replace(handshake, config_json="", space_specification="").to_proto()
        self._call = channel.unary_unary(
            METHOD,
            request_serializer=replay_pb2.UpdatePrioritiesRequest.SerializeToString,
            response_deserializer=replay_pb2.UpdatePrioritiesResponse.FromString,
        )
        self._give_up_s = give_up_s
        self._backoff = Backoff(*_BACKOFF_S, rng)
        self._changed = threading.Condition()
        self._waiting: deque[Update] = deque()
        self._num_waiting = 0
        self._outcomes: Counter[str] = Counter()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating]) -> bool:
        """Send ``priorities`` ``[N]`` of ``keys`` ``[N]``. Never blocks. The arrays must not change any more.

        False if it is closed: then they are not counted, either. ValueError if the lengths differ.
        """
        if len(keys) != len(priorities):
            raise ValueError(f"{len(priorities)} priorities for {len(keys)} keys")
        with self._changed:
            if self._closed.is_set():
                return False
            self._waiting.append((keys, priorities))
            self._num_waiting += len(keys)
            while self._num_waiting > _MAX_WAITING and len(self._waiting) > 1:
                self._give_up(self._waiting.popleft())
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="shard-priorities", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return True

    def outcomes(self) -> Counter[str]:
        """Keys so far by what became of them: "applied", "ignored", "refused", "unsent"."""
        with self._changed:
            return Counter(self._outcomes)

    def close(self) -> None:
        """Give up what waits. What is under way ends with its channel. Idempotent."""
        with self._changed:
            self._closed.set()
            while self._waiting:
                self._give_up(self._waiting.popleft())
            self._changed.notify_all()

    def join(self) -> None:
        """After :meth:`close`, and the channel's: wait until all is counted."""
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _give_up(self, update: Update) -> None:
        """Count what is not sent. The caller holds ``_changed``."""
        self._num_waiting -= len(update[0])
        self._outcomes["unsent"] += len(update[0])

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting) or self._closed.is_set())
                if not self._waiting:
                    return
                updates = list(self._waiting)
                self._waiting.clear()
                self._num_waiting = 0
            keys = np.concatenate([keys for keys, _ in updates])
            priorities = np.concatenate([priorities for _, priorities in updates])
            for begin in range(0, len(keys), _KEYS_PER_CALL):
                part = slice(begin, begin + _KEYS_PER_CALL)
                outcome = self._send(keys[part], priorities[part])
                with self._changed:
                    self._outcomes.update(outcome)

    def _send(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating]) -> dict[str, int]:
        packed = pack_priorities(keys, priorities)
        request = replay_pb2.UpdatePrioritiesRequest(
            handshake=self._handshake, keys=packed[0], priorities=packed[1]
        )
        try:
            answer = call_until_answered(
                lambda: self._call(request, timeout=self._give_up_s),
                backoff=self._backoff,
                wait=self._closed.wait,
                timeout_s=self._give_up_s,
            )
        except (HeadraceError, ValueError):  # gone, and its items with it; or the channel was closed under us
            return {"unsent": len(keys)}
        return {"applied": answer.applied, "ignored": answer.ignored, "refused": answer.refused}
