"""Pacing: which fragments may be started so that none is older than the bound when it is trained on.

The rule. An update consumes at most ``n`` fragments. A fragment acted by version ``v`` has its
deadline at update ``v + K`` (the update that starts from version ``v + K``): used there it has lag
``K``, used any later it is too old. With ``u`` the next update and ``D(x)`` the number of admitted,
unused fragments whose deadline is at or before ``x``, everything can be used in time iff

    D(x) <= n * (x - u + 1)   for every x >= u

(earliest deadline first is optimal for unit jobs: Jackson 1955). A permit for one more fragment is
given while that stays true; it gets the earliest deadline ``d`` that fits and says that the fragment
must be acted by version ``d - K`` or a newer one. ``d <= current + K``, so that version is to be had.
In total at most ``n * (K + 1)`` fragments are admitted: the capacity formula of AReaL's staleness
manager, refined by deadline. ``K = 0`` is lockstep.

To keep it true an update takes the oldest fragments first, and waits while something outstanding
could no longer be used in time otherwise (:meth:`Admission.due`). What cannot be bounded by
construction (a fragment from before a restart, or one that came after everybody had stopped waiting
for it) is admitted all the same and judged by its true lag when it is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headrace.flow.messages import Permit


@dataclass(slots=True)
class _Holder:
    """One stream: permits outstanding, how many it let lapse, the newest version it has shown."""

    ahead: int
    outstanding: list[Permit] = field(default_factory=list)
    lapsed: int = 0
    seen_version: int = 0
    served: int = 0  # ordinal of the last permit, so that equals take turns


class Admission:
    """Counts and versions of the fragments to come; knows neither fragments nor time. Not thread-safe.

    Invariants: a permit's index is issued once, ever; every fragment made under a permit has lag
    <= ``max_lag`` at the update that takes it, as long as updates are full, wait for what is due and
    take the oldest first, and version numbers rise by one per update.
    """

    def __init__(self, *, batch_fragments: int, max_lag: int, version: int) -> None:
        """Begin at ``version`` (a number) with nothing admitted."""
        self.batch_fragments = batch_fragments
        self.max_lag = max_lag
        self.current = version
        self._taken = 0  # batches that were taken and whose version isn't published yet
        self._next_index = 0
        self.num_outstanding = 0
        """Fragments that were admitted and have not come."""
        self.num_held = 0
        """Fragments that have come and are unused."""
        self._held: Counter[int] = Counter()  # the held ones by version
        self._holders: dict[int, _Holder] = {}

    @property
    def next_update(self) -> int:
        """Number of the version that the next batch will be trained from."""
        return self.current + self._taken

    @property
    def num_streams(self) -> int:
        """Streams that have joined and not left."""
        return len(self._holders)

    def outstanding(self, stream: int) -> int:
        """Fragments of the stream that were admitted and have not come."""
        return len(self._holders[stream].outstanding)

    def join(self, stream: int, *, ahead: int, started: int = 0, seen_version: int = 0) -> None:
        """Admit a stream that has already started ``started`` fragments, with ``seen_version`` or newer.

        ``ahead``: permits it may hold unused; few, so that faster streams get more of them.
        """
        holder = self._holders[stream] = _Holder(ahead, seen_version=seen_version)
        oldest_usable = max(0, self.next_update - self.max_lag)
        holder.outstanding.extend(Permit(self._new_index(), oldest_usable) for _ in range(started))
        self.num_outstanding += started

    def leave(self, stream: int) -> None:
        """The stream is gone; its permits may be given to others."""
        self.num_outstanding -= len(self._holders.pop(stream).outstanding)

    def keep(self, stream: int, count: int) -> None:
        """The stream will deliver ``count`` more fragments at most; its other permits are free again."""
        holder = self._holders[stream]
        self.num_outstanding -= len(holder.outstanding[count:])
        del holder.outstanding[count:]

    def is_open(self) -> bool:
        """Whether the bound allows another fragment to be started now."""
        return self._deadline_of_next() is not None

    def by_need(self, streams: Iterable[int]) -> list[int]:
        """Who of ``streams`` may get a permit, in this order: those with the fewest unused first.

        A stream that let a permit lapse gets no new one before it has delivered.
        """
        fair = -(-(self.max_lag + 1) * self.batch_fragments // max(1, len(self._holders)))
        eligible = [
            (len(holder.outstanding), holder.served, stream)
            for stream in streams
            if not (holder := self._holders[stream]).lapsed
            and len(holder.outstanding) < min(holder.ahead, fair)
        ]
        return [stream for _, _, stream in sorted(eligible)]

    def issue(self, stream: int) -> Permit:
        """Admit one more fragment of the stream. ValueError unless :meth:`is_open`."""
        deadline = self._deadline_of_next()
        if deadline is None:
            raise ValueError("the bound on the policy lag is reached")
        permit = Permit(self._new_index(), max(0, deadline - self.max_lag))
        holder = self._holders[stream]
        holder.outstanding.append(permit)
        holder.outstanding.sort(key=lambda other: (other.min_version, other.index))
        holder.served = permit.index
        self.num_outstanding += 1
        return permit

    def arrived(self, stream: int, version: int) -> bool:
        """A fragment acted by ``version`` came and is held. Returns whether it had been admitted."""
        admitted = self.refused(stream, version)
        self._held[version] += 1
        self.num_held += 1
        return admitted

    def refused(self, stream: int, version: int = 0) -> bool:
        """A fragment came and is not held: its permit is spent. Returns whether it had been admitted.

        It spends the stream's permit with the lowest ``min_version``, whichever it was made under:
        versions of one stream never fall, so the later fragments are good for the stricter ones.
        """
        holder = self._holders[stream]
        holder.seen_version = max(holder.seen_version, version)
        holder.lapsed = max(0, holder.lapsed - 1)
        if holder.outstanding:
            del holder.outstanding[0]
            self.num_outstanding -= 1
            return True
        return False

    def dropped(self, version: int) -> None:
        """A held fragment of ``version`` was dropped instead of used."""
        self._held[version] -= 1
        self.num_held -= 1

    def take(self, versions: Iterable[int]) -> None:
        """The next update consumes held fragments of these versions (at most ``batch_fragments``)."""
        self._held.subtract(versions)
        self._held = +self._held
        self.num_held = self._held.total()
        self._taken += 1

    def advance(self, version: int, *, consumed: bool) -> None:
        """A version was published; ``consumed``: from the oldest taken batch (else e.g. published anew)."""
        if version < self.current:
            raise ValueError(f"version {version} is older than {self.current}: versions never fall")
        self.current = version
        self._taken -= consumed

    def due(self) -> list[tuple[int, Permit]]:
        """What the next update must wait for, or something outstanding could not be used in time.

        For each ``x``: if fewer than ``n`` fragments with a deadline up to ``x`` are there, this
        update leaves all that are outstanding up to ``x`` to the ``x - u`` updates after it.
        """
        update, size = self.next_update, self.batch_fragments
        waiting = sorted(
            ((self._deadline(permit, holder), stream, permit) for stream, holder, permit in self._each()),
            key=lambda entry: entry[0],
        )
        held = [(self._deadline_of_version(version), number) for version, number in self._held.items()]
        for count, (deadline, _, _) in enumerate(waiting, start=1):
            here = sum(number for when, number in held if when <= deadline)
            if here < size and count > size * (deadline - update):
                return [(stream, permit) for when, stream, permit in waiting if when <= deadline]
        return []

    def all_outstanding(self) -> list[tuple[int, Permit]]:
        """Everything that was admitted and has not come, with the stream it is expected from."""
        return [(stream, permit) for stream, _, permit in self._each()]

    def lapse(self, stream: int, permit: Permit) -> None:
        """Stop waiting for this one; the stream gets no more permits until it delivers."""
        holder = self._holders[stream]
        holder.outstanding.remove(permit)
        holder.lapsed += 1
        self.num_outstanding -= 1

    def _deadline_of_next(self) -> int | None:
        """Earliest deadline that one more fragment may have; None: there is no room for one.

        ``D`` fragments with a deadline up to ``x`` leave no room at any ``x' >= x`` with
        ``n * (x' - u + 1) <= D``.
        """
        horizon = self.current + self.max_lag - self.next_update + 1  # updates that can be looked ahead to
        if self.num_held + self.num_outstanding >= self.batch_fragments * horizon:
            return None
        admitted = Counter(self._deadline(permit, holder) for _, holder, permit in self._each())
        for version, count in self._held.items():
            admitted[self._deadline_of_version(version)] += count
        earliest, total = self.next_update, 0
        for deadline in sorted(admitted):
            total += admitted[deadline]
            last_full = self.next_update - 1 + total // self.batch_fragments
            if last_full >= deadline:
                earliest = max(earliest, last_full + 1)
        return earliest

    def _deadline(self, permit: Permit, holder: _Holder) -> int:
        return self._deadline_of_version(max(permit.min_version, holder.seen_version))

    def _deadline_of_version(self, version: int) -> int:
        """Last update that may use ``version``, at least the next one and within the horizon."""
        return max(self.next_update, min(version, self.current) + self.max_lag)

    def _each(self) -> Iterator[tuple[int, _Holder, Permit]]:
        for stream, holder in self._holders.items():
            for permit in holder.outstanding:
                yield stream, holder, permit

    def _new_index(self) -> int:
        self._next_index += 1
        return self._next_index - 1
