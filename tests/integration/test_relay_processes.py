"""Relays in processes of their own, which are killed while versions go out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_run import LiveRun
from local_run import read_events, small_document
from paramserving import (
    PATIENCE_S,
    ParamserverProcess,
    RelayProcess,
    make_config,
    make_handshake,
    make_parameters,
    make_report,
    make_settings,
)

from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.types import PolicyVersion


class Tree:
    """A parameter server, a relay of it, a relay of that one, and a watcher at each of the three."""

    def __init__(self, run_dir: Path) -> None:
        config = make_config()
        self.settings = make_settings(run_dir)
        self.root = ParamserverProcess(run_dir, config)
        self.root.start()
        self.middle = RelayProcess(run_dir, config, self.root.address)
        self.middle.start()
        self.leaf = RelayProcess(run_dir, config, self.middle.address, index=1)
        self.leaf.start()
        self.processes = (self.root, self.middle, self.leaf)
        self.learner = PublishClient(self.root.address, make_handshake(self.settings))
        self.watchers = [
            SnapshotWatcher(process.address, make_handshake(self.settings, f"sampler-{index}/0"))
            for index, process in enumerate(self.processes)
        ]
        for watcher in self.watchers:
            watcher.start()
        self.version: PolicyVersion | None = None
        self.updates = 0
        self.watched: list[list[PolicyVersion]] = [[] for _ in self.watchers]

    def publish(self) -> None:
        """One more version."""
        self.updates += 1
        parameters, report = make_parameters(self.updates), make_report(self.updates)
        self.version = self.learner.publish(
            self.version, parameters, None, report, [], timeout_s=PATIENCE_S
        ).version

    def arrive(self) -> None:
        """Wait until every watcher has the newest version, whole; note all that they see on the way."""
        for watcher, seen in zip(self.watchers, self.watched, strict=True):
            while not seen or seen[-1] != self.version:
                snapshot = watcher.wait_newer(seen[-1] if seen else None, PATIENCE_S)
                assert snapshot is not None, "the newest version never came"
                seen.append(snapshot.version)
            assert snapshot.parameters["policy/weight"][0] == self.updates

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.stop()
        self.learner.close()
        for process in self.processes:
            process.kill()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(tmp_path)
    yield tree
    tree.close()


@pytest.mark.parametrize("victim", ["middle", "leaf", "root"])
def test_whoever_is_killed_versions_go_on_everywhere_and_never_fall(tree: Tree, victim: str) -> None:
    process: ParamserverProcess = getattr(tree, victim)
    for _ in range(2):
        tree.publish()
        tree.arrive()
        process.kill()
        if victim != "root":
            tree.publish()
        process.start()
    tree.publish()
    tree.arrive()
    for seen in tree.watched:
        assert seen == sorted(set(seen))


def test_a_relay_that_is_told_to_leave_leaves_with_0(tree: Tree) -> None:
    tree.publish()
    tree.arrive()
    assert tree.leaf.terminate() == 0


@pytest.mark.timeout(300)
def test_a_run_whose_relay_is_killed_finishes_and_loses_nothing(tmp_path: Path) -> None:
    document = small_document(
        run={"stop": {"updates": 60}},
        sampler={"count": 2},
        paramserver={"relays": 2},
        restart={"max_restarts": 100, "backoff_s": 0.1, "max_backoff_s": 0.5},
    )
    with LiveRun(tmp_path, document) as run:
        run.wait_until(lambda: run.updates() >= 3, "three updates")
        run.kill("relay-1")
        before = run.updates()
        run.wait_until(lambda: run.updates() > before, "an update after the restart")
        finished = run.finish()
    assert finished.exit_code == 0, finished.output
    assert finished.summary["status"] == "finished"
    assert finished.summary["restarts"]["relay"] == 1
    assert finished.summary["ledger"]["balanced"] is True
    assert finished.summary["ledger"]["lost"] == {}
    assert not read_events(finished.folder, "gap")
