"""Loops compiled when an image is built are used as they are, and nothing is written beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_RUN = """
from headrace.replay import kernels
kernels.warm_up()
found = [value.stats for value in vars(kernels).values() if hasattr(value, "stats")]
assert found
hits, misses = [stats.cache_hits for stats in found], [stats.cache_misses for stats in found]
print(*(sum(sum(each.values()) for each in counts) for counts in (hits, misses)))
"""


def _hits_and_misses(mode: str, folder: Path, processor: str = "generic") -> tuple[int, int]:
    variables = {"HEADRACE_NUMBA": mode, "NUMBA_CACHE_DIR": str(folder), "NUMBA_CPU_NAME": processor}
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    hits, misses = done.stdout.split()
    return int(hits), int(misses)


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("baked")
    assert _hits_and_misses("1", folder)[1] > 0
    return folder


def _content(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_nothing_is_compiled_again(baked: Path) -> None:
    hits, misses = _hits_and_misses("baked", baked)
    assert hits > 0
    assert misses == 0


def test_what_was_compiled_for_another_processor_is_neither_used_nor_replaced(baked: Path) -> None:
    before = _content(baked)
    hits, _misses = _hits_and_misses(
        "baked", baked, "x86-64-v2" if os.uname().machine == "x86_64" else "cortex-a72"
    )
    assert hits == 0
    assert _content(baked) == before
