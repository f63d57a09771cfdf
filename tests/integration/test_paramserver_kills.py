"""A parameter server process that is killed again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from paramserving import (
    PATIENCE_S,
    ParamserverProcess,
    make_account,
    make_config,
    make_handshake,
    make_report,
    make_settings,
)

from headrace.checkpoint import CheckpointDirectory
from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.events import read_events
from headrace.types import PolicyVersion

SECTIONS = {"paramserver": {"checkpoint_every": 7, "keep": 2}}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ParamserverProcess]:
    process = ParamserverProcess(tmp_path, make_config(**SECTIONS))
    process.start()
    yield process
    process.kill()


class Learner:
    """Publishes one version an update, as a learner does."""

    def __init__(self, process: ParamserverProcess) -> None:
        handshake = make_handshake(make_settings(process.run_dir, **SECTIONS))
        self.client = PublishClient(process.address, handshake)
        self.version: PolicyVersion | None = None
        self.updates = 0
        self.published: list[PolicyVersion] = []
        self.heard: list[str] = []

    def recover(self) -> None:
        fetched = self.client.fetch(timeout_s=PATIENCE_S)
        if fetched is None:
            return
        assert fetched.training is not None
        assert fetched.training["optimizer"][0] == fetched.report.updates
        self.version, self.updates = fetched.snapshot.version, fetched.report.updates

    def publish(self) -> None:
        self.updates += 1
        published = self.client.publish(
            self.version,
            {"weight": np.full((128, 128), self.updates, np.float32)},
            {"optimizer": np.full(3, self.updates)},
            make_report(self.updates),
            [make_account(settled=self.updates, trained=self.updates * 128)],
            timeout_s=PATIENCE_S,
        )
        self.version = published.version
        self.published.append(published.version)


@pytest.mark.chaos
@pytest.mark.slow
def test_versions_never_fall_and_a_learner_goes_on_through_ten_kills(process: ParamserverProcess) -> None:
    learner = Learner(process)
    settings = make_settings(process.run_dir, **SECTIONS)
    watcher = SnapshotWatcher(process.address, make_handshake(settings, "sampler-0/0"))
    watcher.start()
    watched: list[PolicyVersion] = []
    for kill in range(10):
        for _ in range(5):
            learner.publish()
            snapshot = watcher.wait_newer(watched[-1] if watched else None, PATIENCE_S)
            assert snapshot is not None
            assert snapshot.parameters["weight"][0, 0] <= learner.updates
            watched.append(snapshot.version)
        process.kill()
        process.start()
        if kill % 3 == 2:
            learner.client.close()
            last = learner.published[-1]
            learner = Learner(process)
            learner.recover()
            assert learner.version == last, "a version was lost although it is small"
            learner.published.append(last)
    watcher.stop()
    learner.client.close()
    assert watched == sorted(set(watched))
    numbers = [version.number for version in watched]
    assert numbers == list(range(50)), "no number is skipped while only the server dies"
    assert watched[-1].epoch == 10
    assert process.terminate() == 0
    directory = CheckpointDirectory(process.run_dir)
    newest = directory.load(directory.resolve("latest"))
    assert newest.report.updates == 50
    assert newest.accounts == (make_account(settled=50, trained=50 * 128),)


def test_a_learner_waits_for_a_server_that_is_away(process: ParamserverProcess) -> None:
    learner = Learner(process)
    learner.publish()
    process.kill()
    calls: list[float] = []

    def wait_and_restart(seconds: float) -> bool:
        calls.append(seconds)
        if len(calls) == 3:
            process.start()
        return False

    learner.client._wait = wait_and_restart
    learner.publish()
    assert learner.published == [PolicyVersion(1, 0), PolicyVersion(2, 1)]
    assert len(calls) >= 3


def test_a_newest_checkpoint_that_is_damaged_is_passed_over_and_no_number_comes_twice(
    process: ParamserverProcess,
) -> None:
    learner = Learner(process)
    for _ in range(8):
        learner.publish()
    assert process.terminate() == 0
    directory = CheckpointDirectory(process.run_dir)
    (directory.resolve("latest") / "acting.safetensors").write_bytes(b"damaged")
    for path in (process.run_dir / "paramserver").glob("newest-*"):
        path.unlink()
    process.start()
    learner.recover()
    assert learner.version is not None
    assert learner.version.number == 8
    assert learner.updates < 8
    learner.publish()
    assert learner.version == PolicyVersion(2, 9)
    kinds = [event["kind"] for event in read_events(process.run_dir)]
    assert "checkpoint_skipped" in kinds
    assert "rolled_back" in kinds


def test_a_second_server_of_the_run_is_refused(process: ParamserverProcess) -> None:
    second = ParamserverProcess(process.run_dir, make_config(**SECTIONS))
    with pytest.raises(AssertionError, match="ended with 2"):
        second.start()
