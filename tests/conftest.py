"""What every test may use: the case environments on the path, and small configurations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.config.sections import EnvironmentConfig

SUPPORT = Path(__file__).parent / "support"
sys.path.insert(0, str(SUPPORT))


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
