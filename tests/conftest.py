"""What every test may use: the case environments on the path, and small configurations."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.config.sections import EnvironmentConfig

SUPPORT = Path(__file__).parent / "support"
sys.path.insert(0, str(SUPPORT))


def pytest_configure() -> None:
    """A suite in the background of a script inherits an ignored Ctrl-C; so would every run that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
