"""The groups of a run's learners: each counts as one party in rounds."""

from __future__ import annotations

from collections.abc import Collection

from headrace.config.choices import group_size
from headrace.config.sections import Config
from headrace.sync.contribution import Group
from headrace.sync.replicas import Replicas
from headrace.sync.rounds import Rounds

_GENERATIONS_PER_EPOCH = 2**20  # so that a restarted server never gives a number out again


def expected_parties(config: Config) -> list[str]:
    """Names of the parties that take part in rounds once all learners of a run are there."""
    size = group_size(config)
    if size is None:
        return [f"learner-{index}" for index in range(config.learner.count)]
    return [_party(index) for index in range(-(-config.learner.count // size))]


def _party(number: int) -> str:
    return f"group-{number}"


class Groups:
    """Which learners reduce gradients together, by their numbers. Not thread-safe.

    Invariant: a learner is a member of the rounds exactly while it is in a group.
    """

    def __init__(
        self, rounds: Rounds, *, learners: int, group_size: int, epoch: int, deadline_s: float | None
    ) -> None:
        self._rounds = rounds
        self._size = group_size
        names = [f"learner-{index}" for index in range(learners)]
        self._replicas = [
            Replicas(
                names[first : first + group_size],
                generation=epoch * _GENERATIONS_PER_EPOCH,
                deadline_s=deadline_s,
            )
            for first in range(0, learners, group_size)
        ]
        self._rendezvous: dict[str, str] = {}

    def join(self, learner_id: str, rendezvous: str) -> None:
        """A learner is here; others can meet it at ``rendezvous``."""
        self._rendezvous[learner_id] = rendezvous
        self._of(learner_id).join(learner_id)

    def leave(self, learner_id: str, now: float) -> None:
        """A learner is gone."""
        self._of(learner_id).leave(learner_id, now)

    def ask(self, learner_id: str, generation: int, now: float) -> None:
        """A learner waits for a group, as ``generation`` is broken (0: as it has none)."""
        self._of(learner_id).ask(learner_id, generation, now)

    def form_due(self, now: float) -> list[str]:
        """Put together anew what is broken; returns the members. What they had offered is void."""
        formed: list[str] = []
        for number, replicas in enumerate(self._replicas):
            if replicas.is_due(self._rounds.offered, now):
                formed += self._form(number, self._rounds.offered)
        return formed

    def after_close(self, members: Collection[str]) -> list[str]:
        """The round of ``members`` has closed: groups change where learners have come or gone.

        Returns the newcomers.
        """
        newcomers: list[str] = []
        for number, replicas in enumerate(self._replicas):
            before = replicas.ranks
            if any(member in before for member in members) and replicas.is_changing():
                newcomers += [member for member in self._form(number, members) if member not in before]
        return newcomers

    def group_of(self, learner_id: str) -> Group | None:
        """The group that a learner is in; None: it is in none."""
        replicas = self._of(learner_id)
        if learner_id not in replicas.ranks:
            return None
        return Group(
            generation=replicas.generation,
            rank=replicas.ranks.index(learner_id),
            size=len(replicas.ranks),
            rendezvous=self._rendezvous[replicas.ranks[0]],
        )

    def party_of(self, learner_id: str) -> str:
        """Name of a learner's group."""
        return _party(self._number(learner_id))

    def _form(self, number: int, offered: Collection[str]) -> tuple[str, ...]:
        replicas = self._replicas[number]
        before = replicas.ranks
        ranks = replicas.form(frozenset(offered))
        for member in (*before, *ranks):
            self._rounds.leave(member)
        for member in ranks:
            self._rounds.join(member, party=_party(number))
        return ranks

    def _of(self, learner_id: str) -> Replicas:
        return self._replicas[self._number(learner_id)]

    def _number(self, learner_id: str) -> int:
        """Learners beyond those of the configuration, or named otherwise, go into the last group."""
        tail = learner_id.rpartition("-")[2]
        return min(
            int(tail) // self._size if tail.isdigit() else len(self._replicas), len(self._replicas) - 1
        )
