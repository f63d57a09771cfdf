"""The images' description: one target a service, nothing secret, nobody is root, one version."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config.process import ProcessConfig
from headrace.local.process import MALLOC_ENVIRONMENT
from scripts import build_images

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SERVICES: dict[str, list[str]] = PROJECT["tool"]["headrace"]["services"]
VERSION: str = PROJECT["project"]["version"]
COMPOSE = ROOT / "docker" / "compose.yaml"


def _instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "docker" / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def _stages() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """By name: what it is from, and its instructions."""
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    name = ""
    for word, rest in _instructions():
        if word == "FROM":
            parent, _, name = rest.partition(" AS ")
            found[name] = (parent, [])
        elif name:
            found[name][1].append((word, rest))
    return found


STAGES = _stages()


def _values(stage: str, wanted: str) -> list[str]:
    return [rest for word, rest in STAGES[stage][1] if word == wanted]


def _chain(stage: str) -> list[str]:
    """The stage, and all it is from."""
    found = []
    while stage in STAGES:
        found.append(stage)
        stage = STAGES[stage][0]
    return found


def test_there_is_a_target_for_every_service() -> None:
    entered = {stage for stage in STAGES if _values(stage, "ENTRYPOINT")}
    folders = {path.parent.name for path in (ROOT / "services").glob("*/__main__.py")}
    assert entered - {"sampler-torch"} == set(SERVICES) == folders | {"redis"}


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_holds_the_layers_its_service_has(service: str) -> None:
    copied = {
        source.removesuffix("-packages")
        for stage in _chain(service)
        for rest in _values(stage, "COPY")
        for source in re.findall(r"--from=(\S+)", rest)
    }
    assert copied - {"code"} == set(SERVICES[service])


@pytest.mark.parametrize("service", SERVICES)
def test_a_process_is_nobody_in_particular_and_a_child_of_tini(service: str) -> None:
    assert _values(service, "USER") == ["10001:10001"]
    entry = json.loads(_values(service, "ENTRYPOINT")[0])
    started = ["valkey-server"] if service == "redis" else ["python", "-P", "-m", f"services.{service}"]
    assert entry == ["tini", "--", *started]


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_says_what_it_is(service: str) -> None:
    labels = dict(part.split("=", 1) for rest in _values(service, "LABEL") for part in shlex.split(rest))
    prefix = "org.opencontainers.image."
    assert {prefix + name for name in ("title", "description", "version", "licenses")} <= set(labels)
    assert labels[f"{prefix}version"] == "${VERSION}"


def test_the_version_is_the_projects() -> None:
    assert {rest for word, rest in _instructions() if word == "ARG" and rest.startswith("VERSION")} == {
        f"VERSION={VERSION}"
    }
    assert set(re.findall(r"\$\{VERSION:-(.*?)\}", COMPOSE.read_text("utf-8"))) == {VERSION}
    assert build_images.parse([]).version == VERSION


def test_images_set_mallocs_three_settings_as_local_runs_do() -> None:
    variables = dict(part.split("=", 1) for rest in _values("runtime", "ENV") for part in shlex.split(rest))
    assert MALLOC_ENVIRONMENT.items() <= variables.items()


def test_what_ends_up_in_an_image_is_built_without_pip_compilers_or_added_addresses() -> None:
    final = {stage for service in (*SERVICES, "sampler-torch") for stage in _chain(service)}
    commands = [rest for stage in final for rest in _values(stage, "RUN")]
    assert not [text for text in commands if re.search(r"\bpip\b|gcc|build-essential|curl|wget", text)]
    assert not [word for word, _ in _instructions() if word == "ADD"]


def test_nothing_secret_is_given_to_a_build() -> None:
    named = [rest for word, rest in _instructions() if word in ("ARG", "ENV")]
    assert not [rest for rest in named if re.search(r"TOKEN|PASSWORD|SECRET|CREDENTIAL", rest, re.IGNORECASE)]
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[:1] == "!"}
    copied = {
        rest.split()[0].split("/")[0]
        for word, rest in _instructions()
        if word == "COPY" and "--from" not in rest
    }
    assert copied <= kept


def _composed() -> dict[str, Any]:
    composed: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))["services"]
    return composed


def test_every_service_is_composed() -> None:
    images = {re.sub(r"\$\{[^}]*\}", "", each["image"]).strip("/:") for each in _composed().values()}
    assert images == set(SERVICES)


@pytest.mark.parametrize("name", sorted(set(_composed()) - {"redis"}))
def test_a_composed_process_understands_its_variables(name: str) -> None:
    service = _composed()[name]
    variables = {
        key: re.sub(r"\$\{.*?:-(.*?)\}", r"\1", str(value)) for key, value in service["environment"].items()
    }
    kind = "sampler" if name == "evaluator" else name
    process = ProcessConfig.from_args(
        kind, [], {**variables, "HEADRACE_CONFIG": str(ROOT / "configs" / "cartpole-apex.yaml")}
    )
    assert process.linger
    assert process.health_port == 7001
    known = subprocess.run(
        [sys.executable, "-P", "-m", f"services.{kind}", "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not {variable for variable in variables if variable not in known}


@pytest.mark.parametrize("name", sorted(_composed()))
def test_a_composed_container_can_write_only_where_it_must(name: str) -> None:
    service = _composed()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["tmpfs"] == ["/tmp"]
    written = [text for text in service["volumes"] if not text.endswith(":ro")]
    assert [text.rpartition(":")[2] for text in written] == [
        "/data" if name == "redis" else "/var/lib/headrace"
    ]


def test_without_an_engine_the_build_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert build_images.main([], works=lambda engine: False) == 2
    assert "docker, podman, buildah" in capsys.readouterr().err


def test_the_first_engine_that_works_is_taken() -> None:
    assert build_images.choose_engine("auto", lambda engine: engine != "docker") == "podman"
    assert build_images.choose_engine("docker", lambda engine: engine != "docker") is None


def test_a_build_is_told_what_was_asked_for() -> None:
    options = build_images.parse(
        ["learner", "--gpu", "--registry", "here/rl", "--base", "python", "--pip-args=--no-index"]
    )
    command = build_images.command("podman", "learner", options)
    assert command[command.index("--tag") + 1] == f"here/rl/learner:{VERSION}-gpu"
    assert {"--build-arg=TORCH=cuda", "--build-arg=BASE=python", "--build-arg=PIP_ARGS=--no-index"} <= set(
        command
    )


def test_an_unknown_service_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        build_images.parse(["learnr"])
    assert ended.value.code == 2


@pytest.mark.skipif(
    not os.environ.get("HEADRACE_TEST_IMAGES"),
    reason="HEADRACE_TEST_IMAGES: build arguments, as for make images",
)
@pytest.mark.timeout(3600)
def test_the_images_build_and_start() -> None:
    given = shlex.split(os.environ["HEADRACE_TEST_IMAGES"])
    assert build_images.main(given) == 0
    options = build_images.parse(given)
    engine = build_images.choose_engine(options.engine)
    assert engine is not None
    for service in set(options.services) - {"redis"}:
        started = [engine, "run", "--rm", "--read-only", "--cap-drop=ALL", "--network=none"]
        image = f"{options.registry}/{service}:{options.version}"
        done = subprocess.run([*started, image, "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "HEADRACE_CONFIG" in done.stdout
