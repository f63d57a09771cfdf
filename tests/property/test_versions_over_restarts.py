"""Whatever is killed, in whatever order: versions only rise, and a version always means the same thing."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from paramserving import PATIENCE_S, make_parameters, make_settings, make_update, open_core

from headrace.checkpoint import Blob
from headrace.types import PolicyVersion
from services.paramserver.core import ParameterServer
from services.paramserver.versions import Update


class Killed(BaseException):
    """The server is gone in the middle of a publish."""


class ServerAndLearner(RuleBasedStateMachine):
    """One server, one learner, one watcher; any of the first two dies at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.run_dir = Path(tempfile.mkdtemp())
        self.issued: list[PolicyVersion] = []  # in the order in which the learner heard of them
        self.meaning: dict[PolicyVersion, str] = {}
        self.watched: PolicyVersion | None = None
        self.version: PolicyVersion | None = None
        self.updates = 0
        self.server: ParameterServer

    @initialize(every=strategies.sampled_from([1, 3, 1000]), journaled=strategies.booleans())
    def start(self, every: int, journaled: bool) -> None:
        """With large models nothing is journaled, and checkpoints are all there is."""
        self.settings = make_settings(self.run_dir, paramserver={"checkpoint_every": every, "keep": 2})
        self.journaled = journaled
        self.open()
        self.learner_starts()

    @rule()
    def learner_publishes(self) -> None:
        self.updates += 1
        self.hear(self.server.publish(self.update()).version)

    @rule()
    def learner_loses_the_answer_and_asks_again(self) -> None:
        self.updates += 1
        first = self.server.publish(self.update()).version
        assert self.server.publish(self.update()).version == first
        self.hear(first)

    @rule(where=strategies.sampled_from(["_reserve", "_keep", "_show"]))
    def server_dies_inside_a_publish(self, where: str) -> None:
        self.updates += 1
        self.publish_until(where)
        self.restart()
        self.hear(self.server.publish(self.update()).version)

    @rule(where=strategies.sampled_from(["_reserve", "_keep", "_show"]))
    def both_die_inside_a_publish(self, where: str) -> None:
        self.updates += 1
        self.publish_until(where)
        self.restart()
        self.learner_starts()

    @rule()
    def server_dies(self) -> None:
        self.restart()

    @rule()
    def learner_dies(self) -> None:
        self.learner_starts()

    @rule()
    def server_and_then_learner_die(self) -> None:
        self.restart()
        self.learner_starts()

    @rule()
    def watcher_looks(self) -> None:
        self.look()

    @precondition(lambda self: hasattr(self, "server"))
    @invariant()
    def what_is_said_of_the_newest_version_never_falls(self) -> None:
        version = self.server.status().version
        assert version is not None
        assert version >= max(self.issued)

    def teardown(self) -> None:
        if hasattr(self, "server"):
            self.kill()
        shutil.rmtree(self.run_dir)

    def update(self) -> Update:
        acting = Blob.encode(make_parameters(self.updates))
        return make_update(self.version, self.updates, acting=acting)

    def hear(self, version: PolicyVersion) -> None:
        """The learner hears what its update is called."""
        assert version not in self.issued
        assert all(version.number > earlier.number and version > earlier for earlier in self.issued)
        self.issued.append(version)
        self.version = version
        self.look()

    def look(self) -> None:
        """The watcher gets what is newer than what it has, and nothing else."""
        record, _status = self.server.wait(self.watched, None, 0.0)
        if record is None:
            return
        assert self.watched is None or record.version > self.watched
        assert self.watched is None or record.version.number > self.watched.number
        assert self.meaning.setdefault(record.version, record.acting.sha256) == record.acting.sha256
        self.watched = record.version

    def learner_starts(self) -> None:
        record = self.server.fetch()
        if record is None:
            self.version, self.updates = None, 0
            self.hear(self.server.publish(self.update()).version)
            return
        assert not self.journaled or record.version >= max(self.issued), "a journaled version was lost"
        self.version, self.updates = record.version, record.report.updates
        if record.version not in self.issued:
            self.hear(record.version)

    def publish_until(self, where: str) -> None:
        def die(*_arguments: Any) -> None:
            raise Killed

        setattr(self.server, where, die)
        try:
            self.server.publish(self.update())
        except Killed:
            return
        raise AssertionError(f"{where} was not reached")

    def restart(self) -> None:
        self.kill()
        self.open()

    def open(self) -> None:
        self.server = open_core(self.settings)
        if not self.journaled:
            self.server._journal._max_bytes = 0

    def kill(self) -> None:
        """As if killed: nothing more is requested, what is being written gets done or not."""
        self.server._checkpointer.close(PATIENCE_S)
        self.server._issued.close()


ServerAndLearner.TestCase.settings = settings(
    max_examples=20, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestVersionsOverRestarts = ServerAndLearner.TestCase
