"""The inner loops are compiled where they can be, and work where they can't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plain_kernels import load_plain_kernels
from streams import stream

from headrace.config.sections import ReplayConfig
from headrace.replay import kernels
from headrace.replay.rows import RowBlock
from headrace.replay.shard import HotShard, bytes_per_chunk

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


@pytest.mark.skipif(not kernels.COMPILED, reason="nothing is compiled")
def test_nothing_is_compiled_any_more_once_a_shard_is_there() -> None:
    replay = ReplayConfig(selector="prioritized", max_times_sampled=3, freshness_half_life=2.0)
    fragments = stream(40, 2, seed=0).fragments(10)
    capacity = max(2**16, 2 * bytes_per_chunk(replay, fragments[0]))
    replay = replay.model_copy(update={"hot_capacity_bytes": capacity})
    shard = HotShard(replay, n_step=2, gamma=0.9, rng=np.random.default_rng(0))
    compiled = signatures()
    assert all(compiled.values())
    for fragment in fragments * 10:
        shard.insert(fragment, np.ones((10, 2), np.float32))
        sample = shard.sample(8)
        assert sample is not None
        keys, priorities = sample.keys[::2], np.frombuffer(bytes(16), np.float32)  # as from the wire
        keys.setflags(write=False)
        shard.update_priorities(keys, priorities)
    shard.set_version(99)
    block = RowBlock.stack(fragments, np.full(len(fragments), -1))
    block.gather(keys * 0, keys * 0, n_step=2, gamma=0.9)
    assert signatures() == compiled


def signatures() -> dict[str, int]:
    """For how many kinds of arguments each loop was compiled."""
    loops = ("set_leaves", "set_chunk", "reweight", "update_keys", "draw_leaves", "walk_n_steps")
    return {name: len(getattr(kernels, name).signatures) for name in loops}
