"""Groups: learners that average every gradient among themselves, and count as one in rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.checkpoint import Blob
from headrace.config.sections import Config
from headrace.errors import FencedError
from headrace.events import OnEvent
from headrace.rl.all_reduce import AllReduce, GroupBrokenError
from headrace.rl.random_state import RNG_STATE
from headrace.rl.shared import Shared
from headrace.sync.aggregation import FlatArray
from headrace.sync.contribution import REGROUP, Group, GroupRequest, RoundResult, VectorKind
from headrace.sync.vectors import encode_vector
from headrace.types import Array
from services.learner.exchanging import Exchanged, Learned
from services.learner.metrics import LearnerMetrics
from services.learner.round_exchange import DROPPED, Connections, RoundExchange, SharingTrainable


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """All that an update changes in an algorithm, to begin it again."""

    acting: Mapping[str, Array]
    training: Mapping[str, Array]


class GroupExchange(RoundExchange):
    """One member's side of a group.

    The first member brings the group's parameters to the round, the others only their accounts. Where a
    member is lost in the middle of an update, those that are left begin it again, in a new group: no work is
    lost but that of the dead. A newcomer gets the first member's whole state.
    """

    def __init__(
        self,
        peers: AllReduce,
        config: Config,
        index: int,
        algorithm: SharingTrainable,
        connections: Connections,
        metrics: LearnerMetrics,
        *,
        stopping: Callable[[], bool],
        on_event: OnEvent,
    ) -> None:
        super().__init__(config, index, algorithm, connections, metrics, stopping=stopping, on_event=on_event)
        self._peers = peers
        self._wanted: Group | None = None  # the group that the parameter server has named last
        self._need = GroupRequest(0, "it has none")  # what to ask it for where there is none
        algorithm.shared.join(peers)

    def exchange(self, work: Callable[[], Learned]) -> Exchanged | None:
        """Learn together with the group, hand the result in, and go on from the version that comes of it."""
        try:
            return self._exchange(work)
        except FencedError as error:
            self._peers.leave()
            self._wanted = None
            return self._publish_own(str(error))

    def close(self) -> None:
        """Leave group and rounds."""
        super().close()
        self._peers.leave()

    def _exchange(self, work: Callable[[], Learned]) -> Exchanged | None:
        while self._enter_group():
            snapshot = self._snapshot()
            try:
                contribution = self._contribution(work())
            except GroupBrokenError as error:
                assert self._wanted is not None, "it was in a group"
                self._lose(self._wanted, str(error))
                self._begin_again(snapshot)
                continue
            result = self._ask(contribution)
            if result is None:
                return None
            self._wanted = result.group
            if result.outcome != REGROUP:
                return self._settle(result)
            if result.status.ended:
                return Exchanged(result.version, result.status, REGROUP)
            self._begin_again(snapshot)
            if result.values is not None:
                self._go_on_from(result)
        return None

    def _enter_group(self) -> bool:
        """Be in the group that the parameter server has named. False once this process is to stop."""
        while not self._stopping():
            if self._wanted is not None and self._wanted == self._peers.group:
                return True
            if self._wanted is None:
                self._peers.leave()  # whoever still waits for this learner notices, and asks as well
                result = self._ask(self._need)
                if result is None:
                    return False
                if result.values is not None or result.state is not None:
                    self._go_on_from(result)
                if result.status.ended:
                    return False
                self._wanted = result.group
                continue
            try:
                self._peers.enter(self._wanted)
                self._take_over()
            except GroupBrokenError as error:
                self._lose(self._wanted, str(error))
        return False

    def _take_over(self) -> None:
        """Everybody goes on with the first member's state; random numbers stay each one's own."""
        own = self._algorithm.training_state()
        blob = Blob.encode({name: array for name, array in own.items() if name != RNG_STATE})
        data = self._peers.broadcast(blob.data)
        if self._peers.group is not None and self._peers.group.rank:
            training = {**Blob.of(data).decode(), RNG_STATE: own[RNG_STATE]}
            self._algorithm.load(self._algorithm.acting_parameters(), training)
            self._restore()
        self._on_event("group_entered", **_described(self._peers.group))

    def _begin_again(self, snapshot: _Snapshot) -> None:
        """As if the update had not been begun."""
        self._algorithm.load(snapshot.acting, snapshot.training)
        self._algorithm.shared.moments.take_fresh()

    def _lose(self, group: Group, reason: str) -> None:
        """This group can't go on: leave it, and ask for another one next."""
        self._on_event("group_lost", reason=reason, **_described(group))
        self._peers.leave()
        self._wanted, self._need = None, GroupRequest(group.generation, reason)

    def _settle(self, result: RoundResult) -> Exchanged:
        """Go on from the version that a contribution has led to; what this member holds it isn't sent."""
        if result.values is None and result.outcome not in DROPPED:
            self._start = self._algorithm.shared.values()
        return super()._settle(result)

    def _snapshot(self) -> _Snapshot:
        return _Snapshot(self._algorithm.acting_parameters(), self._algorithm.training_state())

    def _vector(self, shared: Shared, weight: int) -> tuple[VectorKind, FlatArray, int]:
        kind, values, weight = super()._vector(shared, weight)
        group = self._peers.group
        return (kind, values, weight) if group is None or group.rank == 0 else ("none", values, weight)

    def _values_sha256(self, vector: FlatArray) -> str:
        values = self._algorithm.shared.values()
        return hashlib.sha256(encode_vector(values, "float32")).hexdigest()


def _described(group: Group | None) -> dict[str, object]:
    if group is None:
        return {}
    return {"generation": group.generation, "rank": group.rank, "size": group.size}
