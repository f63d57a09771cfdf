from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from paramserving import PATIENCE_S, eventually, make_record
from prometheus_client import CollectorRegistry

from headrace.checkpoint import CheckpointDirectory, VersionRecord
from headrace.events import EventLog, read_events
from headrace.rpc.backoff import Backoff
from headrace.types import Evaluation, PolicyVersion
from services.paramserver.checkpointer import Checkpointer, CheckpointPolicy
from services.paramserver.metrics import ParamserverMetrics


class Disk(CheckpointDirectory):
    """A directory whose disk is full until there is room."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir)
        self.has_room = threading.Event()

    def save(self, record: VersionRecord) -> None:
        if not self.has_room.is_set():
            raise OSError(28, "No space left on device")
        super().save(record)


def make_checkpointer(run_dir: Path, directory: CheckpointDirectory) -> Checkpointer:
    checkpointer = Checkpointer(
        directory,
        keep=2,
        before_save=lambda: None,
        events=EventLog(run_dir, "paramserver-0"),
        metrics=ParamserverMetrics(CollectorRegistry()),
        backoff=Backoff(0.001, 0.01, np.random.default_rng(0)),
    )
    checkpointer.start()
    return checkpointer


def kinds(run_dir: Path) -> list[str]:
    return [event["kind"] for event in read_events(run_dir)]


def test_a_full_disk_is_told_and_tried_again_until_there_is_room(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    checkpointer = make_checkpointer(tmp_path, disk)
    checkpointer.request(make_record(1))
    eventually(lambda: kinds(tmp_path).count("checkpoint_failed") >= 2, "it is tried again")
    assert "No space left on device" in checkpointer.problem
    disk.has_room.set()
    assert checkpointer.wait_idle(PATIENCE_S)
    assert checkpointer.problem == ""
    assert disk.numbers() == [1]
    assert "checkpoint_recovered" in kinds(tmp_path)
    assert checkpointer.close(PATIENCE_S)


def test_behind_a_full_disk_only_the_newest_version_waits(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    checkpointer = make_checkpointer(tmp_path, disk)
    for number in range(1, 6):
        checkpointer.request(make_record(number))
    disk.has_room.set()
    assert checkpointer.wait_idle(PATIENCE_S)
    assert disk.numbers()[-1] == 5
    checkpointer.close(PATIENCE_S)


def test_closing_on_a_full_disk_says_that_something_is_not_saved(tmp_path: Path) -> None:
    checkpointer = make_checkpointer(tmp_path, Disk(tmp_path))
    checkpointer.request(make_record(1))
    assert not checkpointer.close(PATIENCE_S)


def test_closing_finishes_what_was_requested(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    checkpointer = make_checkpointer(tmp_path, directory)
    checkpointer.request(make_record(1))
    assert checkpointer.close(PATIENCE_S)
    assert directory.numbers() == [1]


def test_the_best_version_is_saved_even_if_it_is_an_old_one(tmp_path: Path) -> None:
    directory = CheckpointDirectory(tmp_path)
    checkpointer = make_checkpointer(tmp_path, directory)
    for number in (5, 6, 7):
        checkpointer.request(make_record(number))
        assert checkpointer.wait_idle(PATIENCE_S)
    evaluation = Evaluation(PolicyVersion(1, 2), 100.0, 1.0, 10)
    checkpointer.request_best(make_record(2, training=None), evaluation)
    assert checkpointer.close(PATIENCE_S)
    assert directory.numbers() == [2, 6, 7]
    assert directory.load(directory.resolve("best")) == make_record(2, training=None)
    assert directory.best() == evaluation
    assert directory.resolve("latest") == directory.folder(7)


def test_a_checkpoint_is_due_every_so_many_updates() -> None:
    policy = CheckpointPolicy(every=10, last_saved=None)
    saved = [number for number in range(35) if policy.wants(make_record(number))]
    assert saved == [0, 10, 20, 30]


def test_after_a_restart_it_counts_from_the_checkpoint_on_disk() -> None:
    policy = CheckpointPolicy(every=10, last_saved=47)
    assert [number for number in range(48, 70) if policy.wants(make_record(number))] == [57, 67]


def test_a_learner_that_sends_training_state_when_asked_is_asked_in_time() -> None:
    policy = CheckpointPolicy(every=10, last_saved=0)
    saved, asked = [], False
    for number in range(1, 31):
        record = make_record(number, **({} if asked else {"training": None}))
        if policy.wants(record):
            saved.append((number, record.training is not None))
        asked = policy.asks(record, ended=False)
    assert saved == [(10, True), (20, True), (30, True)]


def test_a_learner_that_never_sends_training_state_gets_its_checkpoints_too() -> None:
    policy = CheckpointPolicy(every=10, last_saved=0)
    saved = []
    for number in range(1, 31):
        record = make_record(number, training=None)
        if policy.wants(record):
            saved.append(number)
        policy.asks(record, ended=False)
    assert saved == [10, 20, 30]


@pytest.mark.parametrize(("has_training", "asked"), [(True, False), (False, True)])
def test_the_last_version_is_asked_for_its_training_state(has_training: bool, asked: bool) -> None:
    policy = CheckpointPolicy(every=10, last_saved=0)
    record = make_record(3, **({} if has_training else {"training": None}))
    assert policy.asks(record, ended=True) == asked
