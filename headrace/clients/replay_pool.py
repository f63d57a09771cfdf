"""All shards of replay as one buffer: draws by one law, and priorities that find their way back."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.clients.shard import ShardClient
from headrace.codec.samples import MAX_ITEMS, SampleReply
from headrace.errors import HeadraceError
from headrace.replay.weights import drift, importance_weights, law, quotas
from headrace.types import Array, Sample

_SILENCE_S = 10.0  # a shard that says nothing for so long is asked no more until it is listed anew
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


@dataclass(frozen=True, slots=True)
class Origin:
    """Items of one shard in a draw: ``rows`` ``[K]`` of the draw are ``keys`` ``[K]`` of that shard."""

    client: ShardClient
    rows: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PoolDraw:
    """M items over all shards, in random order."""

    columns: Mapping[str, Array]  # [M, ...]
    importance_weights: npt.NDArray[np.float32]  # [M]
    versions: npt.NDArray[np.int64]  # [M]
    origins: tuple[Origin, ...]
    by_tier: Mapping[str, int]


@dataclass(slots=True)
class _Member:
    """A shard in use. ``mass`` and ``count`` are the newest known, from the directory or from itself."""

    client: ShardClient
    tier: str
    mass: float
    count: int
    silent: bool = False


class ShardPool:
    """Draws from shards in proportion to their masses. Used by one thread.

    A shard that dies, is silent, or has less than its mass promised: its part is drawn from the others.
    ``wait_seconds``: how long :meth:`draw` has waited, by reason ("empty": nothing to draw anywhere,
    "connection": shards that don't answer, "sample": the answers under way).
    """

    def __init__(
        self,
        connect: Callable[[str], ShardClient],
        *,
        exponent: float,
        rng: np.random.Generator,
        clock: Callable[[], float] = time.monotonic,
        on_event: Callable[[str, str], None] = lambda _kind, _sentence: None,
    ) -> None:
        """``connect`` opens a client to an address; ``exponent`` is that of importance weights."""
        self._connect = connect
        self._exponent = exponent
        self._rng = rng
        self._clock = clock
        self._on_event = on_event
        self._members: dict[tuple[str, str], _Member] = {}
        self._listed: tuple[tuple[str, str, float, int], ...] = ()
        self.wait_seconds: defaultdict[str, float] = defaultdict(float)
        self.samples: Counter[str] = Counter()
        """Items drawn, by tier."""

    @property
    def fatal(self) -> HeadraceError | None:
        """Why some shard and we don't belong together; None if all do."""
        return next((m.client.fatal for m in self._members.values() if m.client.fatal is not None), None)

    def set_shards(self, shards: Sequence[Listed]) -> None:
        """Draw from these from now on. The same list again changes nothing."""
        listed = tuple((shard.shard_id, shard.address, shard.mass, shard.count) for shard in shards)
        if listed == self._listed:
            return
        self._listed = listed
        wanted = {(shard.shard_id, shard.address): shard for shard in shards}
        for key in [key for key in self._members if key not in wanted]:
            self._members.pop(key).client.close()
        for key, shard in wanted.items():
            member = self._members.get(key)
            if member is None:
                self._members[key] = _Member(
                    self._connect(shard.address), shard.tier, shard.mass, shard.count
                )
            else:
                member.mass, member.count, member.silent = shard.mass, shard.count, False

    def draw(self, num_items: int, newest_version: int, timeout_s: float) -> PoolDraw | None:
        """``num_items`` items, or None if they could not be had within ``timeout_s`` seconds."""
        deadline = self._clock() + timeout_s
        found: list[tuple[_Member, Sample, float]] = []
        left = num_items
        while left > 0:
            members = [m for m in self._members.values() if m.mass > 0.0 and not m.silent]
            ready = [member for member in members if member.client.ready]
            if not ready:
                if self._clock() >= deadline:
                    return None
                self._pause("connection" if members else "empty")
                continue
            shares = law([member.mass for member in ready])
            for member, sample, share in self._ask(ready, shares, left, newest_version):
                found.append((member, sample, share))
                left -= sample.size
            if left > 0 and self._clock() >= deadline:
                return None
        return self._merge(found)

    def update_priorities(self, draw: PoolDraw, priorities: npt.NDArray[np.floating]) -> None:
        """Send ``priorities`` ``[M]`` back to the shards and items that they belong to. Never blocks."""
        for origin in draw.origins:
            origin.client.update_priorities(origin.keys, priorities[origin.rows])

    def drift_from(self, masses: Mapping[str, float]) -> float:
        """Total variation between the masses in use and ``masses`` by shard."""
        names = sorted({name for name, _ in self._members} | set(masses))
        used = {name: member.mass for (name, _), member in self._members.items()}
        return drift([used.get(name, 0.0) for name in names], [masses.get(name, 0.0) for name in names])

    def close(self) -> None:
        """Let go of all shards."""
        for member in self._members.values():
            member.client.close()
        self._members.clear()

    def _ask(
        self, members: list[_Member], shares: npt.NDArray[np.float64], num_items: int, newest_version: int
    ) -> list[tuple[_Member, Sample, float]]:
        """Ask all at once for their parts of ``num_items``; what came, with the share it was drawn by."""
        asked = []
        for member, share, quota in zip(members, shares, quotas(shares, num_items, self._rng), strict=True):
            for part in _parts(int(quota)):
                request = member.client.ask(part, newest_version)
                if request >= 0:
                    asked.append((member, float(share), request))
        found = []
        for member, share, request in asked:
            reply = self._await(member, request)
            if reply is None:
                continue
            member.mass, member.count = reply.mass, reply.count
            if reply.sample is not None:
                found.append((member, reply.sample, share))
        return found

    def _await(self, member: _Member, request: int) -> SampleReply | None:
        began = self._clock()
        reply = member.client.answer(request, _SILENCE_S)
        waited = self._clock() - began
        self.wait_seconds["sample"] += waited
        if reply is None and waited >= _SILENCE_S:
            member.silent = True
            self._on_event("shard_silent", f"{member.client.address} has not answered for {waited:.0f} s")
        return reply

    def _pause(self, reason: str) -> None:
        time.sleep(_PAUSE_S)
        self.wait_seconds[reason] += _PAUSE_S

    def _merge(self, found: list[tuple[_Member, Sample, float]]) -> PoolDraw:
        total = sum(member.count for member in self._members.values())
        samples = [sample for _, sample, _ in found]
        probabilities = np.concatenate([share * sample.probabilities for _, sample, share in found])
        # Shuffled, so that no minibatch of an update is of one shard alone.
        order = self._rng.permutation(len(probabilities)) if len(found) > 1 else np.arange(len(probabilities))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        columns = {
            name: np.concatenate([sample.columns[name] for sample in samples])[order]
            if len(samples) > 1
            else samples[0].columns[name]
            for name in samples[0].columns
        }
        origins, begin, by_tier = [], 0, Counter[str]()
        for member, sample, _ in found:
            origins.append(Origin(member.client, place[begin : begin + sample.size], sample.keys))
            begin += sample.size
            by_tier[member.tier] += sample.size
        self.samples.update(by_tier)
        return PoolDraw(
            columns=columns,
            importance_weights=importance_weights(probabilities[order], total, self._exponent),
            versions=np.concatenate([sample.versions for sample in samples])[order],
            origins=tuple(origins),
            by_tier=by_tier,
        )


def _parts(quota: int) -> list[int]:
    """A quota in draws that a shard takes."""
    return [MAX_ITEMS] * (quota // MAX_ITEMS) + ([quota % MAX_ITEMS] if quota % MAX_ITEMS else [])
