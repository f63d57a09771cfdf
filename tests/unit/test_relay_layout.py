"""Who watches whom in a local run with relays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.config.sections import Config
from headrace.local.addresses import Addresses, choose_addresses
from headrace.local.layout import metrics_ports, processes
from headrace.local.run_folder import RunFolder

RELAYS = tuple(f"127.0.0.1:1{index}" for index in range(7))


def make_config(**sections: Any) -> Config:
    return Config.model_validate(
        {"environment": {"id": "CartPole-v1"}, "run": {"stop": {"updates": 1}}, **sections}
    )


def watched(config: Config, folder: Path, relays: int) -> dict[str, str]:
    """What each process of the run is told to watch, by its name."""
    addresses = Addresses("127.0.0.1:1", ("127.0.0.1:2",), relays=RELAYS[:relays])
    specs = processes(config, RunFolder(folder), "run-1", addresses)
    return {spec.name: spec.command[spec.command.index("--paramserver") + 1] for spec in specs}


def test_samplers_and_evaluator_watch_relays_in_turns_and_the_learner_publishes(tmp_path: Path) -> None:
    config = make_config(sampler={"count": 3}, paramserver={"relays": 2})
    assert watched(config, tmp_path, 2) == {
        "paramserver-0": "127.0.0.1:1",
        "relay-0": "127.0.0.1:1",
        "relay-1": "127.0.0.1:1",
        "learner-0": "127.0.0.1:1",
        "sampler-0": RELAYS[0],
        "sampler-1": RELAYS[1],
        "sampler-2": RELAYS[0],
        "evaluator-0": RELAYS[1],
    }


def test_without_relays_everybody_watches_the_parameter_server(tmp_path: Path) -> None:
    assert set(watched(make_config(sampler={"count": 3}), tmp_path, 0).values()) == {"127.0.0.1:1"}


def test_with_a_fan_out_relays_form_a_tree(tmp_path: Path) -> None:
    config = make_config(paramserver={"relays": 7, "relay_fan_out": 2})
    found = watched(config, tmp_path, 7)
    of_relays = [found[f"relay-{index}"] for index in range(7)]
    assert of_relays == ["127.0.0.1:1"] * 2 + [RELAYS[0]] * 2 + [RELAYS[1]] * 2 + [RELAYS[2]]


def test_a_relay_is_started_as_one_before_who_watches_it(tmp_path: Path) -> None:
    config = make_config(paramserver={"relays": 1})
    addresses = Addresses("127.0.0.1:1", ("127.0.0.1:2",), relays=RELAYS[:1])
    specs = processes(config, RunFolder(tmp_path), "run-1", addresses)
    assert [spec.name for spec in specs][:2] == ["paramserver-0", "relay-0"]
    assert specs[1].command[1:4] == ("-P", "-m", "services.paramserver")
    assert "--relay" in specs[1].command
    assert specs[1].command[specs[1].command.index("--listen") + 1] == RELAYS[0]


def test_relays_take_the_ports_that_were_asked_for() -> None:
    config = make_config(network={"relay_port": 7100, "metrics_port": 9000}, paramserver={"relays": 2})
    assert choose_addresses(config).relays == ("127.0.0.1:7100", "127.0.0.1:7101")
    ports = metrics_ports(config)
    assert len(set(ports.values())) == len(ports)
    assert {"relay-0", "relay-1"} <= ports.keys()


@pytest.mark.parametrize("relays", [0, 3])
def test_relays_without_a_port_get_free_ones_of_their_own(relays: int) -> None:
    addresses = choose_addresses(make_config(paramserver={"relays": relays}))
    taken = {addresses.paramserver, *addresses.learners, *addresses.relays}
    assert len(taken) == 2 + relays
