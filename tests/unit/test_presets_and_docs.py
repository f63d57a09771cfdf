"""Every preset loads, and the generated pages are those that the code generates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.config.checks import check_with_spaces
from headrace.config.docs import config_markdown, config_schema
from headrace.config.fields import walk
from headrace.config.load import load_config
from headrace.envs.factory import probe

ROOT = Path(__file__).resolve().parents[2]
PRESETS = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_the_preset_loads_and_is_named_for_what_it_holds(path: Path) -> None:
    config = load_config(path)
    environment, algorithm = path.stem.rsplit("-", 1)
    assert config.algorithm.name == {"apex": "dqn"}.get(algorithm, algorithm)
    assert config.environment.id.split("-")[0].lower() == environment


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_the_preset_says_its_command(path: Path) -> None:
    assert f"headrace train configs/{path.name}" in path.read_text()


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_the_presets_buffer_holds_its_batches(path: Path) -> None:
    config = load_config(path)
    if config.environment.id.startswith("LunarLander"):
        pytest.importorskip("Box2D", reason="the extra box2d is not installed")
    check_with_spaces(config, probe(config.environment))


@pytest.mark.parametrize("script", ["generate_proto.py", "generate_docs.py"])
def test_generated_files_are_in_sync(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_every_field_is_documented_with_a_sentence() -> None:
    page = config_markdown()
    for path, field in walk():
        assert field.description, ".".join(path)
        assert f"| `{'.'.join(path)}` |" in page


def test_the_schema_knows_the_written_keys() -> None:
    assert '"return"' in config_schema()
    assert '"return_"' not in config_schema()
