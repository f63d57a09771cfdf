"""What can't run is refused with a sentence, and nothing is started."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from paramserving import make_record

from headrace.checkpoint import CheckpointDirectory, Journal, find_newest, read_journal
from headrace.config.load import config_from_document
from headrace.config.sections import Config
from headrace.errors import ConfigurationError
from headrace.local.addresses import Addresses
from headrace.local.layout import metrics_ports, processes
from headrace.local.ports import is_free, pick_port
from headrace.local.preflight import check_run, port_problems, try_out
from headrace.local.probe import Findings, look_back
from headrace.local.run_folder import RunFolder, create


def _config(**sections: Any) -> Config:
    environment = {"id": "CartPole-v1", "lanes": 2, **sections.pop("environment", {})}
    raw: dict[str, Any] = {
        "environment": environment,
        "run": {"stop": {"updates": 1}},
        "algorithm": {"name": "ppo", "batch_steps": 16, "minibatch_size": 8},
        "sampler": {"fragment_length": 8},
        **sections,
    }
    return Config.model_validate(raw)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_taken_port_is_named_with_its_key(taken_port: int) -> None:
    problems = port_problems(_config(network={"learner_port": taken_port}))
    assert problems == [f"network.learner_port: port {taken_port} on 127.0.0.1 is taken"]


def test_a_metrics_port_that_a_later_service_would_take_is_found(taken_port: int) -> None:
    problems = port_problems(_config(network={"metrics_port": taken_port - 2}))
    assert f"network.metrics_port: port {taken_port} on 127.0.0.1 is taken" in problems


def test_a_port_wanted_twice_is_refused() -> None:
    port = pick_port("127.0.0.1", random.Random(1), set())
    problems = port_problems(_config(network={"learner_port": port + 1, "metrics_port": port}))
    assert any("also wanted by network.learner_port" in problem for problem in problems)


def test_a_host_that_is_not_this_machine_is_refused() -> None:
    (problem,) = port_problems(_config(network={"host": "192.0.2.1"}))
    assert "192.0.2.1" in problem


def test_picked_ports_are_free_and_differ() -> None:
    taken: set[int] = set()
    ports = [pick_port("127.0.0.1", random.Random(seed), taken) for seed in (5, 5, 5)]
    assert len(set(ports)) == 3
    assert all(is_free("127.0.0.1", port) for port in ports)


def test_an_environment_that_can_be_learned_has_no_problems() -> None:
    assert try_out(_config(), None).problems == []


def test_an_unknown_environment_is_refused_with_a_suggestion() -> None:
    (problem,) = try_out(_config(environment={"id": "CartPol-v1"}), None).problems
    assert problem.startswith("environment.id: ")
    assert "CartPole-v1" in problem


@pytest.mark.parametrize("actor", ["numpy", "torch"])
def test_an_algorithm_that_cannot_act_in_the_environment_is_refused(actor: str) -> None:
    pendulum = {"environment": {"id": "Pendulum-v1"}, "sampler": {"actor": actor}}
    (problem,) = try_out(_config(algorithm={"name": "dqn"}, **pendulum), None).problems
    assert problem.startswith("algorithm.name: dqn learns one value for each action")
    assert try_out(_config(algorithm={"name": "sac"}, **pendulum), None).problems == []


def test_an_environment_that_ends_its_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits.py").write_text("import os\nprint('no licence found', flush=True)\nos._exit(9)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (problem,) = try_out(_config(environment={"id": "exits:Env"}), None).problems
    assert problem == "environment.id: trying exits:Env out ended with exit code 9: no licence found"


def test_every_problem_is_said_at_once_and_nothing_is_written(taken_port: int, tmp_path: Path) -> None:
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "file").touch()
    config = _config(environment={"id": "CartPol-v1"}, network={"paramserver_port": taken_port})
    with pytest.raises(ConfigurationError) as caught:
        check_run(config, RunFolder(occupied), resume=False)
    starts = [problem.split(":")[0] for problem in caught.value.problems]
    assert starts == ["--run-dir", "network.paramserver_port", "environment.id"]
    assert [path.name for path in occupied.iterdir()] == ["file"]


def test_what_a_run_is_cannot_be_changed_on_resume(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    create(folder, _config(), datetime(2026, 1, 1))
    changed = _config(
        environment={"id": "Acrobot-v1"},
        policy={"hidden": [8]},
        run={"stop": {"updates": 2}, "seed": 9},
    )
    with pytest.raises(ConfigurationError) as caught:
        check_run(changed, folder, resume=True)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "environment.id",
        "policy.hidden",
        "run.seed",
    ]
    check_run(_config(run={"stop": {"updates": 2}}), folder, resume=True)


def test_processes_start_in_order_with_their_places(tmp_path: Path) -> None:
    config = _config(sampler={"fragment_length": 8, "count": 2}, network={"metrics_port": 20000})
    specs = processes(config, RunFolder(tmp_path), "run-1", Addresses("127.0.0.1:1", ("127.0.0.1:2",)))
    assert [spec.name for spec in specs] == [
        "paramserver-0",
        "learner-0",
        "sampler-0",
        "sampler-1",
        "evaluator-0",
    ]
    assert specs[0].command[1:4] == ("-P", "-m", "services.paramserver")
    assert specs[-1].command[1:4] == ("-P", "-m", "services.sampler")
    assert "--evaluate" in specs[-1].command
    assert specs[3].command[specs[3].command.index("--index") + 1] == "1"
    assert list(metrics_ports(config).values()) == [20000, 20001, 20002, 20003, 20004]
    assert all(spec.environment["OMP_NUM_THREADS"] == "1" for spec in specs)


def test_samplers_are_spread_over_learners(tmp_path: Path) -> None:
    config = _config(sampler={"fragment_length": 8, "count": 4}, learner={"count": 2})
    specs = processes(config, RunFolder(tmp_path), "run-1", Addresses("host:1", ("host:2", "host:3")))
    learner = {spec.name: spec.command[spec.command.index("--learner") + 1] for spec in specs}
    assert [learner[f"sampler-{index}"] for index in range(4)] == ["host:2", "host:3", "host:2", "host:3"]
    listen = {spec.name: spec.command[spec.command.index("--listen") + 1] for spec in specs}
    assert [listen["learner-0"], listen["learner-1"]] == ["host:2", "host:3"]


@pytest.fixture
def young(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    create(folder, _config(), datetime(2026, 1, 1))
    return folder


def _look_back(folder: RunFolder) -> Findings:
    found = find_newest(CheckpointDirectory(folder.path), read_journal(folder.path))
    return look_back(folder.path, found)


def test_a_run_that_goes_on_from_its_newest_version_says_nothing(young: RunFolder) -> None:
    CheckpointDirectory(young.path).save(make_record(4))
    young.metrics.write_text('{"policy_version": 4}\n')
    assert _look_back(young) == Findings()


def test_a_run_that_never_had_a_version_begins_with_a_word(young: RunFolder) -> None:
    assert _look_back(young) == Findings(notes=["This run has no version yet: it starts from the beginning."])


def test_a_run_that_saved_nothing_is_refused(young: RunFolder) -> None:
    young.metrics.write_text('{"policy_version": 30}\n')
    (problem,) = _look_back(young).problems
    assert problem == "--resume: this run had reached version 30, but none was saved: start it anew"


def test_versions_that_were_never_saved_are_said(young: RunFolder) -> None:
    CheckpointDirectory(young.path).save(make_record(4))
    young.metrics.write_text('{"policy_version": 30}\n')
    (note,) = _look_back(young).notes
    assert "going on from version 1.4 (512 environment steps), not from 30" in note
    assert "later ones were not saved" in note


def test_a_newer_version_in_the_journal_is_what_it_goes_on_from(young: RunFolder) -> None:
    CheckpointDirectory(young.path).save(make_record(4))
    Journal(young.path).write(make_record(30))
    young.metrics.write_text('{"policy_version": 30}\n')
    assert _look_back(young) == Findings()


def test_a_package_that_hides_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "services.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (problem,) = try_out(_config(), None).problems
    assert problem.startswith("PYTHONPATH: ")
    assert "hides Headrace's own package" in problem


def test_a_network_that_no_machine_can_hold_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"policy\.hidden: .* GiB"):
        config_from_document(
            {
                "run": {"stop": {"env_steps": 1000}},
                "environment": {"id": "CartPole-v1"},
                "policy": {"hidden": [100000, 100000]},
            }
        )
