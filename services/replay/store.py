"""Chunks in Redis: written in order, read in bulk, and honest about what Redis can't do at the moment.

Keys of partition P of run R share the hash tag ``{R:P}``, so that in a Redis Cluster they lie in one slot:

* ``{R:P}:chunk:<id>``  a chunk's value (:mod:`services.replay.chunks`)
* ``{R:P}:index``       hash: id -> index entry. A hash, so that writing an entry again changes nothing
* ``{R:P}:session``     name of the start of the run that wrote last

All else that a cluster takes is to find the node of that slot: at the start, and after each failure.

Values and their index entries are written in one transaction, so an entry never points at nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headrace.errors import HeadraceError

UNREACHABLE = "unreachable"
SLOW = "slow"
OUT_OF_MEMORY = "out_of_memory"
READ_ONLY = "read_only"
REFUSED = "refused"
REASONS = (UNREACHABLE, SLOW, OUT_OF_MEMORY, READ_ONLY, REFUSED)
"""Why Redis can't be used. After the third and the fourth it can still be read."""

_STILL_READABLE = (OUT_OF_MEMORY, READ_ONLY)
_PROVE_WRITING = ("write", "probe")
_READ_ONLY_CODES = ("MISCONF", "READONLY", "NOREPLICAS")
TIMEOUT_S = 2.0
_KEYS_PER_READ = 64
_SCAN_COUNT = 1000
_DELETES_PER_CALL = 500


class StoreError(HeadraceError):
    """Redis could not do it; ``reason`` is one of :data:`REASONS`."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class ChunkStore:
    """One partition's keys. Thread-safe. Every call ends within the timeout, one way or the other.

    Invariant: ``reason`` is "" or why a call failed, until a call has proven otherwise.
    ``_lock`` guards ``reason`` and the counters.
    """

    def __init__(
        self,
        url: str,
        run_id: str,
        partition: int,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        on_state: Callable[[str, str], None] = lambda _reason, _sentence: None,
    ) -> None:
        """``on_state(reason, sentence)`` hears of every change; reason "": it works again."""
        self._url = url
        self._timeout_s = timeout_s
        self._entrance: Any = _connect(url, timeout_s)
        self._client = self._entrance  # or the node of a cluster that has our slot
        self._tag = "{" + f"{run_id}:{partition}" + "}"
        self._clock = clock
        self._on_state = on_state
        self._lock = threading.Lock()
        self._reason = ""
        self._seconds: dict[str, float] = {}

    @property
    def reason(self) -> str:
        """Why Redis can't be used, one of :data:`REASONS`; "": it can."""
        return self._reason

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds spent in Redis so far, by kind of call."""
        with self._lock:
            return dict(self._seconds)

    @property
    def readable(self) -> bool:
        """Whether chunks can be read."""
        return not self._reason or self._reason in _STILL_READABLE

    def key(self, name: str) -> str:
        """A key of this partition."""
        return f"{self._tag}:{name}"

    def chunk_key(self, chunk: int) -> str:
        """The key of a chunk's value."""
        return self.key(f"chunk:{chunk}")

    def write(self, chunks: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Store ``(id, value, index entry)`` in one round trip and one transaction. Raises StoreError.

        All are stored or none. Where no answer came in time it may be all: write the same again.
        """
        with self._calling("write"):
            pipe = self._client.pipeline(transaction=True)
            pipe.mset({self.chunk_key(chunk): value for chunk, value, _ in chunks})
            pipe.hset(self.key("index"), mapping={str(chunk): entry for chunk, _, entry in chunks})
            pipe.execute()

    def delete(self, chunks: Sequence[int]) -> None:
        """Remove chunks and their entries. Raises StoreError.

        Not part of :meth:`write`: a full Redis would refuse the transaction before it frees anything.
        """
        for begin in range(0, len(chunks), _DELETES_PER_CALL):
            part = chunks[begin : begin + _DELETES_PER_CALL]
            with self._calling("delete"):
                pipe = self._client.pipeline(transaction=False)
                pipe.hdel(self.key("index"), *map(str, part))
                pipe.delete(*map(self.chunk_key, part))
                pipe.execute()

    def read(self, chunks: Sequence[int]) -> list[bytes | None]:
        """The values of chunks, None for what is not there. Raises StoreError."""
        with self._calling("read"):
            pipe = self._client.pipeline(transaction=False)
            for begin in range(0, len(chunks), _KEYS_PER_READ):
                pipe.mget([self.chunk_key(chunk) for chunk in chunks[begin : begin + _KEYS_PER_READ]])
            return [value for part in pipe.execute() for value in part]

    def index(self) -> Iterator[tuple[int, bytes]]:
        """All index entries, in no order; one that is written meanwhile may come twice. Raises StoreError."""
        cursor = 0
        while True:
            with self._calling("scan"):
                cursor, found = self._client.hscan(self.key("index"), cursor, count=_SCAN_COUNT)
            for field, entry in found.items():
                yield int(field), entry
            if cursor == 0:
                return

    def missing(self, chunks: Iterable[int]) -> list[int]:
        """Those of ``chunks`` that have no index entry any more. Raises StoreError."""
        with self._calling("scan"):
            there = {int(field) for field in self._client.hkeys(self.key("index"))}
        return [chunk for chunk in chunks if chunk not in there]

    def session(self) -> str:
        """Name of the start of the run that wrote last; "": none has. Raises StoreError."""
        with self._calling("info"):
            value = self._at_home(lambda client: client.get(self.key("session")))
            return "" if value is None else str(value, "utf-8")

    def set_session(self, name: str) -> None:
        """Note which start of the run writes from now on. Raises StoreError."""
        with self._calling("write"):
            self._client.set(self.key("session"), name)

    def probe(self) -> None:
        """Whether Redis takes writes again. Raises StoreError while it does not."""
        with self._calling("probe"):
            self._at_home(lambda client: client.set(self.key("probe"), b"1"))

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()
        self._entrance.close()

    def _at_home(self, command: Callable[[Any], Any]) -> Any:
        """Run a command where our slot is, and stay there: of a cluster's nodes only one takes it.

        Whatever goes wrong later, the way is looked for again from the entrance.
        """
        try:
            answer = command(self._entrance)
        except redis.exceptions.MovedError as moved:
            home = _connect(_moved_url(self._url, moved.host, moved.port), self._timeout_s)
            answer = command(home)
            self._client = home
        else:
            self._client = self._entrance
        return answer

    @contextmanager
    def _calling(self, kind: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        except (redis.RedisError, OSError) as error:
            reason = _reason_of(error)
            self._note(reason, str(error))
            raise StoreError(reason, f"Redis {_WORDS[reason]}: {error}") from error
        else:
            # What can be read while nothing can be written says nothing about writing.
            if self._reason and (kind in _PROVE_WRITING or self._reason not in _STILL_READABLE):
                self._note("", "")
        finally:
            with self._lock:
                self._seconds[kind] = self._seconds.get(kind, 0.0) + self._clock() - began

    def _note(self, reason: str, sentence: str) -> None:
        with self._lock:
            changed = reason != self._reason
            self._reason = reason
        if changed:
            self._on_state(reason, sentence)


_WORDS = {
    UNREACHABLE: "can't be reached",
    SLOW: "does not answer in time",
    OUT_OF_MEMORY: "is out of memory",
    READ_ONLY: "takes no writes",
    REFUSED: "refuses",
}


def _connect(url: str, timeout_s: float) -> Any:
    options: dict[str, Any] = {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),  # whoever calls decides when to try again
        "protocol": 2,
    }
    return redis.Redis.from_url(url, **options)


def _moved_url(url: str, host: str, port: int) -> str:
    """The same Redis at another address; no host: the same one."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}{at}{host or parts.hostname}:{port}").geturl()


def _reason_of(error: Exception) -> str:
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM command not allowed" in str(error):
        return OUT_OF_MEMORY
    if isinstance(error, redis.exceptions.ReadOnlyError) or any(
        code in str(error) for code in _READ_ONLY_CODES
    ):
        return READ_ONLY
    if isinstance(error, redis.exceptions.TimeoutError | TimeoutError):
        return SLOW
    if isinstance(error, redis.exceptions.AuthenticationError):
        return REFUSED
    if isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.AskError | OSError):
        return UNREACHABLE
    return REFUSED
