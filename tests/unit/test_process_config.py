"""A service process learns its place from flags, then from HEADRACE_* variables, then from defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config.digest import config_digest
from headrace.config.process import ProcessConfig
from headrace.errors import ConfigurationError


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("environment: {id: CartPole-v1}\nrun: {stop: {env_steps: 1000}}\n")
    return path


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_default(document: Path, tmp_path: Path) -> None:
    place = ProcessConfig.from_args(
        "sampler",
        ["--config", str(document), "--index", "3", "--learner", "127.0.0.1:5"],
        {
            "HEADRACE_INDEX": "7",
            "HEADRACE_PARAMSERVER": "paramserver:4",
            "HEADRACE_RUN_DIR": str(tmp_path / "my-run"),
            "HEADRACE_METRICS_PORT": "9100",
        },
    )
    assert place.index == 3
    assert (place.paramserver, place.learner) == ("paramserver:4", "127.0.0.1:5")
    assert place.metrics_port == 9100
    assert place.listen == "127.0.0.1:0"
    assert (place.run_dir, place.run_id) == (tmp_path / "my-run", "my-run")
    assert place.config_digest == config_digest(place.config)
    assert place.name == "sampler-3"


def test_an_evaluator_needs_no_learner(document: Path) -> None:
    place = ProcessConfig.from_args(
        "sampler",
        ["--config", str(document), "--run-id", "r", "--paramserver", "localhost:1", "--evaluate"],
        {},
    )
    assert place.evaluate
    assert place.name == "evaluator-0"
    assert place.run_dir is None


def test_a_relay_is_a_paramserver_process_that_needs_one_to_watch(document: Path) -> None:
    arguments = ["--config", str(document), "--run-id", "r", "--index", "2", "--relay"]
    place = ProcessConfig.from_args("paramserver", [*arguments, "--paramserver", "localhost:1"], {})
    assert (place.name, place.paramserver) == ("relay-2", "localhost:1")
    with pytest.raises(ConfigurationError, match="--paramserver"):
        ProcessConfig.from_args("paramserver", arguments, {})


@pytest.mark.parametrize("text", ["true", "1", "YES"])
def test_evaluate_by_variable(document: Path, text: str) -> None:
    environ = {"HEADRACE_CONFIG": str(document), "HEADRACE_RUN_ID": "r", "HEADRACE_PARAMSERVER": "a:1"}
    assert ProcessConfig.from_args("sampler", [], {**environ, "HEADRACE_EVALUATE": text}).evaluate


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ProcessConfig.from_args(
            "sampler",
            ["--index", "-1", "--listen", "nowhere", "--metrics-port", "70000"],
            {"HEADRACE_EVALUATE": "perhaps", "HEADRACE_PARAMSERVER": "a:b"},
        )
    starts = [problem.split(":")[0] for problem in caught.value.problems]
    assert starts == [
        "HEADRACE_EVALUATE",
        "--config",
        "--run-id",
        "--listen",
        "--paramserver",
        "--index",
        "--metrics-port",
    ]


def test_an_unknown_flag_is_an_error_of_ours() -> None:
    with pytest.raises(ConfigurationError, match=r"services\.learner: unrecognized arguments: --lerner"):
        ProcessConfig.from_args("learner", ["--lerner", "x"], {})


def test_problems_of_the_document_come_through(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.yaml: no such file"):
        ProcessConfig.from_args(
            "paramserver", ["--config", str(tmp_path / "missing.yaml"), "--run-id", "r"], {}
        )


def test_a_replay_partition_is_told_its_redis_and_the_others(document: Path) -> None:
    place = ProcessConfig.from_args(
        "replay",
        ["--config", str(document), "--run-id", "r", "--index", "1", "--replay", "a:1, b:2"],
        {"HEADRACE_REDIS": "redis://here:6379/0", "HEADRACE_SESSION": "start-7"},
    )
    assert place.name == "replay-1"
    assert place.replay == ("a:1", "b:2")
    assert (place.redis, place.session) == ("redis://here:6379/0", "start-7")
    with pytest.raises(ConfigurationError, match="the first partition has the directory"):
        ProcessConfig.from_args("replay", ["--config", str(document), "--run-id", "r", "--index", "1"], {})
    with pytest.raises(ConfigurationError, match="--replay: must be host:port"):
        ProcessConfig.from_args(
            "replay", ["--config", str(document), "--run-id", "r", "--replay", "a:1,b"], {}
        )


def cluster_place(service: str, document: Path, **variables: str) -> ProcessConfig:
    named = {f"HEADRACE_{name.upper()}": value for name, value in variables.items()}
    return ProcessConfig.from_args(
        service,
        [],
        {
            "HEADRACE_CONFIG": str(document),
            "HEADRACE_RUN_ID": "run",
            "HEADRACE_PARAMSERVER": "paramserver:7000",
            "HEADRACE_LEARNER": "learner-{index}.learner:7000",
            "HEADRACE_REPLAY": "replay-{index}.replay:7000",
            **named,
        },
    )


def with_sections(document: Path, text: str) -> Path:
    document.write_text(document.read_text() + text)
    return document


def test_the_name_of_a_pod_says_its_number(document: Path) -> None:
    assert cluster_place("learner", document, index="learner-12").index == 12
    for wrong in ("-1", "learner-", "learner-x", "learner--1x"):
        with pytest.raises(ConfigurationError, match="--index: must be a whole number"):
            cluster_place("learner", document, index=wrong)


def test_a_sampler_without_a_number_is_placed_by_what_the_paramserver_says(document: Path) -> None:
    with_sections(document, "learner: {count: 3}\nsampler: {count: 3}\n")
    place = cluster_place("sampler", document, index="auto", pod="sampler-x7")
    assert (place.is_placed, place.name) == (False, "sampler-x7")
    placed = place.placed(7, 1)
    assert (placed.name, placed.learner) == ("sampler-7", "learner-1.learner:7000")
    with pytest.raises(ConfigurationError, match="--index"):
        cluster_place("learner", document, index="auto")


def test_samplers_sink_to_partitions_in_turns_where_there_is_a_cold_tier(document: Path) -> None:
    with_sections(document, "algorithm: {name: dqn}\nreplay: {partitions: 2}\n")
    sinks = [cluster_place("sampler", document, index=str(index), sink="auto").sink for index in range(3)]
    assert sinks == ["replay-0.replay:7000", "replay-1.replay:7000", "replay-0.replay:7000"]
    assert cluster_place("sampler", document, sink="off").sink == ""
    document.write_text(document.read_text().replace("partitions: 2", "cold: 'off'"))
    assert cluster_place("sampler", document, sink="auto").sink == ""


def test_others_are_told_the_advertised_address(document: Path) -> None:
    assert cluster_place("sampler", document).reached_at("0.0.0.0:7000") == "0.0.0.0:7000"
    assert cluster_place("sampler", document, advertise="10.1.2.3:7000").reached_at("0.0.0.0:7000") == (
        "10.1.2.3:7000"
    )
    assert (
        cluster_place("sampler", document, advertise="10.1.2.3:0").reached_at("0.0.0.0:41") == "10.1.2.3:41"
    )


def test_what_the_document_demands_for_security_must_be_given(document: Path, tmp_path: Path) -> None:
    document.write_text(document.read_text() + "security: {tls: mutual, token: required}\n")
    arguments = ["--config", str(document), "--run-id", "r"]
    with pytest.raises(ConfigurationError) as caught:
        ProcessConfig.from_args("paramserver", arguments, {})
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["--tls", "--token-file"]
    place = ProcessConfig.from_args(
        "paramserver", [*arguments, "--tls", str(tmp_path)], {"HEADRACE_TOKEN_FILE": "/mounted/token"}
    )
    assert (place.tls, place.token_file) == (tmp_path, Path("/mounted/token"))
