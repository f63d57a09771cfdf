"""The inner loops are compiled where they can be, and work where they can't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from plain_kernels import load_plain_kernels

from headrace.replay import kernels

ROOT = Path(__file__).parent.parent.parent


def said(code: str, folder: Path = ROOT, **environment: str) -> str:
    """What a fresh Python prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_they_are_compiled_here() -> None:
    pytest.importorskip("numba")
    if os.environ.get("HEADRACE_NUMBA") != "0":
        assert kernels.COMPILED


def test_they_are_plain_python_if_the_environment_says_so() -> None:
    code = (
        "import sys; import headrace.replay.shard; from headrace.replay import kernels; "
        "print(kernels.COMPILED, 'numba' in sys.modules)"
    )
    assert said(code, HEADRACE_NUMBA="0") == "False False"


def test_without_numba_they_are_plain_python(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('numba needs another numpy')\n")
    (tmp_path / "kernels.py").write_text(Path(kernels.__file__).read_text("utf-8"), "utf-8")
    assert said("import kernels; print(kernels.COMPILED)", tmp_path, HEADRACE_NUMBA="1") == "False"


def test_they_are_compiled_where_nothing_can_be_written(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    (tmp_path / "kernels.py").write_text(Path(kernels.__file__).read_text("utf-8"), "utf-8")
    (tmp_path / "__pycache__").write_text("a file, so that no folder of this name can be made")
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "NUMBA_CACHE_DIR": ""}
    code = "import kernels; print(kernels.COMPILED, kernels._depth(5))"
    assert said(code, tmp_path, HEADRACE_NUMBA="1", PYTHONDONTWRITEBYTECODE="1", **nowhere) == "True 3"


def test_who_only_weighs_what_was_drawn_does_not_load_numba() -> None:
    code = "import sys; import headrace.replay.weights, headrace.types; print('numba' in sys.modules)"
    assert said(code) == "False"


def test_the_oracle_is_not_compiled() -> None:
    assert not load_plain_kernels().COMPILED
