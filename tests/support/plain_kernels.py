"""The inner loops of replay as plain Python, whatever is installed: the oracle of the compiled ones."""

from __future__ import annotations

import importlib.util
import os
from types import ModuleType
from unittest import mock

from headrace.replay import kernels


def load_plain_kernels() -> ModuleType:
    """The module once more, not compiled."""
    spec = importlib.util.spec_from_file_location("plain_kernels_of_replay", kernels.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ, {"HEADRACE_NUMBA": "0"}):
        spec.loader.exec_module(module)
    assert not module.COMPILED
    return module
