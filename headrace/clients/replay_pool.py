"""All shards of replay as one buffer: draws by one law, and priorities that find their way back."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.clients.replay_draw import Collection, Found, Member, PoolDraw, merge, split
from headrace.clients.shard import ShardClient
from headrace.codec.samples import MAX_ITEMS, SampleReply
from headrace.errors import HeadraceError
from headrace.replay.weights import drift, law, quotas

__all__ = ["Listed", "PoolDraw", "ShardPool"]

SILENCE_S = 10.0  # a shard that says nothing for so long is taken for lost
_PAUSE_S = 0.01


class Listed(Protocol):
    """A shard as the directory lists it."""

    @property
    def shard_id(self) -> str:
        """Its name."""
        ...

    @property
    def address(self) -> str:
        """Where it serves."""
        ...

    @property
    def tier(self) -> str:
        """ "hot" or "cold"."""
        ...

    @property
    def mass(self) -> float:
        """Sum of its weights."""
        ...

    @property
    def count(self) -> int:
        """Items that can be drawn."""
        ...


class ShardPool:
    """Draws from shards in proportion to their masses.

    Used by one thread, but for :meth:`update_priorities` and the counters, which any thread may use.
    A shard that dies, is silent, whose answer is refused, or that has nothing to draw: its part is drawn from
    the others. ``wait_seconds``: how long :meth:`draw` has waited, by reason ("empty": nothing to draw
    anywhere, "connection": no shard that answers, "refused": none whose answers can be used, "sample": the
    answers under way).
    """

    def __init__(
        self,
        connect: Callable[[str], ShardClient],
        *,
        exponent: float,
        rng: np.random.Generator,
        clock: Callable[[], float] = time.monotonic,
        on_event: Callable[[str, str], None] = lambda _kind, _sentence: None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """``connect`` opens a client to an address; ``exponent`` is that of importance weights."""
        self._connect = connect
        self._exponent = exponent
        self._rng = rng
        self._clock = clock
        self._on_event = on_event
        self._silence_s = silence_s
        self._members: dict[tuple[str, str], Member] = {}
        self._listed: tuple[tuple[str, str, float, int], ...] = ()
        self._kept: list[Found] = []
        self._lock = threading.Lock()  # guards _gone
        self._gone: Counter[str] = Counter()  # outcomes of priorities of shards that have left
        self.wait_seconds: defaultdict[str, float] = defaultdict(float)
        self.samples: Counter[str] = Counter()
        """Items drawn, by tier."""
        self.refused: Counter[str] = Counter()
        """Answers refused at the door, by shard."""
        self.lost: Counter[str] = Counter()
        """Times a shard broke off, or was silent, while it was asked, by shard."""

    @property
    def fatal(self) -> HeadraceError | None:
        """Why some shard and we don't belong together; None if all do."""
        members = list(self._members.values())
        return next((m.client.fatal for m in members if m.client.fatal is not None), None)

    @property
    def priorities(self) -> Counter[str]:
        """What became of priorities so far, over all shards; see :attr:`ShardClient.priorities`."""
        with self._lock:
            gone = Counter(self._gone)
        return sum((member.client.priorities for member in list(self._members.values())), gone)

    def set_shards(self, shards: Sequence[Listed]) -> None:
        """Draw from these from now on. The same list again changes nothing."""
        listed = tuple((shard.shard_id, shard.address, shard.mass, shard.count) for shard in shards)
        if listed == self._listed:
            return
        self._listed = listed
        wanted = {(shard.shard_id, shard.address): shard for shard in shards}
        for key in [key for key in self._members if key not in wanted]:
            self._let_go(self._members.pop(key))
        for key, shard in wanted.items():
            member = self._members.get(key)
            if member is None:
                client = self._connect(shard.address)
                self._members[key] = Member(shard.shard_id, client, shard.tier, shard.mass, shard.count)
            else:
                member.mass, member.count = shard.mass, shard.count

    def draw(self, num_items: int, newest_version: int, timeout_s: float) -> PoolDraw | None:
        """``num_items`` items, or None if they could not be had within ``timeout_s`` seconds.

        Answers under way are still awaited then, up to ``silence_s`` seconds. What came of too few items is
        part of the next draw.
        """
        deadline = self._clock() + timeout_s
        collection = Collection()
        needed = num_items - sum(found.sample.size for found in self._kept)
        while collection.size < needed:
            self._ask(collection, needed - collection.size, newest_version)
            if collection.size >= needed:
                break
            if self._clock() >= deadline:
                self._kept += collection.found()
                return None
            ready = self._ready()
            if all(member in collection.out for member in ready):
                self._pause(collection.reason if ready else self._why_not_ready())
                collection.out.clear()
        taken, self._kept = split([*self._kept, *collection.found()], num_items)
        total = sum(member.count for member in self._members.values())
        draw = merge(taken, total_count=total, exponent=self._exponent, rng=self._rng)
        self.samples.update(draw.by_tier)
        return draw

    def update_priorities(self, draw: PoolDraw, priorities: npt.NDArray[np.floating]) -> None:
        """Send ``priorities`` ``[M]`` back to the shards and items that they belong to. Never blocks.

        Those of a shard that has left are counted as "unsent".
        """
        for origin in draw.origins:
            if not origin.client.update_priorities(origin.keys, priorities[origin.rows]):
                with self._lock:
                    self._gone["unsent"] += len(origin.keys)

    def drift_from(self, masses: Mapping[str, float]) -> float:
        """Total variation between the masses in use and ``masses`` by shard."""
        names = sorted({name for name, _ in self._members} | set(masses))
        used = {name: member.mass for (name, _), member in self._members.items()}
        return drift([used.get(name, 0.0) for name in names], [masses.get(name, 0.0) for name in names])

    def close(self) -> None:
        """Let go of all shards."""
        while self._members:
            self._let_go(self._members.popitem()[1])

    def _let_go(self, member: Member) -> None:
        member.client.close()
        with self._lock:
            self._gone.update(member.client.priorities)

    def _ready(self) -> list[Member]:
        return [member for member in self._members.values() if member.mass > 0.0 and member.client.ready]

    def _why_not_ready(self) -> str:
        return "connection" if any(member.mass > 0.0 for member in self._members.values()) else "empty"

    def _ask(self, collection: Collection, num_items: int, newest_version: int) -> None:
        """Ask all that are not left out, at once, for their parts of ``num_items``."""
        members = [member for member in self._ready() if member not in collection.out]
        if not members:
            return
        for member in members:
            collection.masses.setdefault(member, member.mass)
        shares = law([collection.masses[member] for member in members])
        asked: deque[tuple[Member, int, int]] = deque()

        def ask(member: Member, wanted: int) -> None:
            request = member.client.ask(min(wanted, MAX_ITEMS), newest_version)
            if request >= 0:
                asked.append((member, request, wanted))
            else:
                self._lose(collection, member)

        for member, quota in zip(members, quotas(shares, num_items, self._rng), strict=True):
            if quota:
                ask(member, int(quota))
        while asked:
            member, request, wanted = asked.popleft()
            left = wanted - self._receive(collection, member, request)
            if left > 0 and member not in collection.out:
                ask(member, left)

    def _receive(self, collection: Collection, member: Member, request: int) -> int:
        """Take one answer in; returns how many items came."""
        reply = self._await(member, request)
        if reply is None:
            self._lose(collection, member)
            return 0
        if reply.problem:
            self.refused[member.shard_id] += 1
            self._complain(member, "sample_refused", reply.problem)
            collection.leave_out(member, "refused", lost=True)
            return 0
        member.mass, member.count, member.in_trouble = reply.mass, reply.count, False
        if reply.sample is None:
            collection.leave_out(member, "empty", lost=False)
            return 0
        collection.add(member, reply.sample)
        return reply.sample.size

    def _lose(self, collection: Collection, member: Member) -> None:
        self.lost[member.shard_id] += 1
        collection.leave_out(member, "connection", lost=True)

    def _await(self, member: Member, request: int) -> SampleReply | None:
        began = self._clock()
        reply = member.client.answer(request, self._silence_s)
        waited = self._clock() - began
        self.wait_seconds["sample"] += waited
        if reply is None and waited >= self._silence_s:
            self._complain(member, "shard_silent", f"no answer for {waited:.0f} s")
            member.client.reconnect()
        return reply

    def _complain(self, member: Member, kind: str, sentence: str) -> None:
        if not member.in_trouble:
            member.in_trouble = True
            self._on_event(kind, f"shard {member.shard_id}: {sentence}")

    def _pause(self, reason: str) -> None:
        time.sleep(_PAUSE_S)
        self.wait_seconds[reason] += _PAUSE_S
