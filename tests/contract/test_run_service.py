"""The run service over a real channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from paramserving import (
    PATIENCE_S,
    eventually,
    make_account,
    make_handshake,
    make_parameters,
    make_report,
    make_settings,
    serving,
)

from headrace.checkpoint import CheckpointDirectory
from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.clients.run import RunClient
from headrace.errors import InvalidDataError, UnavailableError
from headrace.events import read_events
from headrace.types import Evaluation, PolicyVersion, RunStatus
from services.paramserver.assembly import Paramserver
from services.paramserver.config import Settings

FIRST = PolicyVersion(1, 0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path, run={"stop": {"updates": 1000, "return": 100.0}})


@pytest.fixture
def server(settings: Settings) -> Iterator[Paramserver]:
    with serving(settings) as running:
        yield running


@pytest.fixture
def run(server: Paramserver, settings: Settings) -> Iterator[RunClient]:
    client = RunClient(server.server.address, make_handshake(settings, "launcher"))
    yield client
    client.close()


@pytest.fixture
def learner(server: Paramserver, settings: Settings) -> Iterator[PublishClient]:
    client = PublishClient(server.server.address, make_handshake(settings))
    yield client
    client.close()


def evaluation(version: PolicyVersion, return_mean: float) -> Evaluation:
    return Evaluation(version, return_mean, 1.5, 20)


def test_a_run_without_a_version_is_starting(run: RunClient) -> None:
    view = run.state()
    assert view.status == RunStatus("starting")
    assert (view.report, view.accounts, view.best) == (None, (), None)


def test_the_view_has_report_and_accounts_of_the_newest_version(
    run: RunClient, learner: PublishClient
) -> None:
    report, account = make_report(0, episode_return_mean=7.5), make_account(settled=2, trained=128, stale=4)
    learner.publish(None, make_parameters(), None, report, [account])
    view = run.state()
    assert view.status == RunStatus("running", "", FIRST)
    assert (view.report, view.accounts) == (report, (account,))


def test_the_view_says_why_checkpoints_fail(
    run: RunClient, learner: PublishClient, settings: Settings
) -> None:
    (settings.run_dir / "checkpoints").write_text("a file where the folder should be")
    learner.publish(None, make_parameters(), make_parameters(), make_report(0), [])
    eventually(lambda: "checkpoints" in run.state().checkpoint_problem, "the reason is told")
    (settings.run_dir / "checkpoints").unlink()
    eventually(lambda: run.state().checkpoint_problem == "", "it is well again")


def test_everyone_hears_the_first_reason(
    run: RunClient, learner: PublishClient, server: Paramserver, settings: Settings
) -> None:
    watcher = SnapshotWatcher(server.server.address, make_handshake(settings, "sampler-0/0"))
    watcher.start()
    assert run.stop("interrupted", "Ctrl-C").phase == "interrupted"
    assert run.stop("failed", "too late").reason == "Ctrl-C"
    eventually(lambda: watcher.run_state().ended, "the watcher hears of it")
    assert watcher.run_state() == RunStatus("interrupted", "Ctrl-C")
    published = learner.publish(None, make_parameters(), {}, make_report(0), [])
    assert published.run_state == RunStatus("interrupted", "Ctrl-C", FIRST)
    watcher.stop()


def test_a_run_that_ends_wants_its_last_version_whole_and_saves_it(
    run: RunClient, learner: PublishClient, settings: Settings, server: Paramserver
) -> None:
    run.stop("interrupted", "Ctrl-C")
    first = learner.publish(None, make_parameters(), None, make_report(0), [])
    assert first.want_training
    again = learner.publish(None, make_parameters(), {}, make_report(0), [])
    assert (again.version, again.want_training) == (first.version, False)
    assert server.core.wait_saved(PATIENCE_S)
    directory = CheckpointDirectory(settings.run_dir)
    assert directory.load(directory.resolve("latest")).training is not None


def test_the_stop_condition_ends_the_run_in_the_answer_to_the_publish(
    learner: PublishClient, run: RunClient
) -> None:
    published = learner.publish(None, make_parameters(), {}, make_report(1000), [])
    assert published.run_state.phase == "finished"
    assert run.state().status.reason == "run.stop.updates: 1000 of 1000 done"


def test_a_better_evaluation_becomes_the_best_checkpoint_with_the_parameters_it_evaluated(
    run: RunClient, learner: PublishClient, server: Paramserver, settings: Settings
) -> None:
    base = learner.publish(None, make_parameters(0), {}, make_report(3), []).version
    assert run.begin_evaluation(base)
    later = learner.publish(base, make_parameters(1), {}, make_report(4), []).version
    assert run.report_evaluation(evaluation(base, 50.0))
    assert not run.report_evaluation(evaluation(later, 49.0))
    assert server.core.wait_saved(PATIENCE_S)
    directory = CheckpointDirectory(settings.run_dir)
    best = directory.load(directory.resolve("best"))
    assert (best.version, best.parameters()["policy/weight"][0]) == (base, 0.0)
    assert run.state().best == Evaluation(base, 50.0, 1.5, 20, env_steps=3 * 128)


def test_an_evaluation_that_reaches_the_target_ends_the_run(run: RunClient, learner: PublishClient) -> None:
    version = learner.publish(None, make_parameters(), {}, make_report(3), []).version
    run.report_evaluation(evaluation(version, 100.0))
    assert run.state().status.phase == "finished"


def test_a_best_version_that_is_gone_is_told(run: RunClient, settings: Settings) -> None:
    assert not run.begin_evaluation(PolicyVersion(1, 77))
    assert run.report_evaluation(evaluation(PolicyVersion(1, 77), 5.0))
    assert "best_not_kept" in [event["kind"] for event in read_events(settings.run_dir)]


def test_an_evaluation_that_is_not_finite_is_refused(run: RunClient) -> None:
    with pytest.raises(InvalidDataError, match="not finite"):
        run.report_evaluation(evaluation(FIRST, float("nan")))


def test_the_best_is_remembered_over_a_restart(settings: Settings) -> None:
    with serving(settings) as first:
        learner = PublishClient(first.server.address, make_handshake(settings))
        version = learner.publish(None, make_parameters(), {}, make_report(3), []).version
        first.core.report_evaluation(evaluation(version, 50.0))
        learner.close()
    with serving(settings) as second:
        is_best, _status = second.core.report_evaluation(evaluation(version, 49.0))
        assert not is_best


def test_a_resumed_run_that_has_done_its_updates_is_finished_at_once(settings: Settings) -> None:
    with serving(settings) as first:
        learner = PublishClient(first.server.address, make_handshake(settings))
        learner.publish(None, make_parameters(), {}, make_report(999), [])
        learner.close()
    shorter = make_settings(settings.run_dir, run={"stop": {"updates": 500}})
    with serving(shorter) as second:
        assert second.core.status().phase == "finished"
    told = [event for event in read_events(settings.run_dir) if event["kind"] == "config_changed"]
    assert [event["keys"] for event in told] == [["run.stop.return", "run.stop.updates"]]


def test_a_server_that_is_not_there_is_said_at_once(settings: Settings) -> None:
    client = RunClient("127.0.0.1:1", make_handshake(settings))
    with pytest.raises(UnavailableError):
        client.state()
    client.close()
