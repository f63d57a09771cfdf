"""``headrace config`` shows, compares and documents without starting anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.config_commands import app, document_of
from headrace.config.digest import config_digest
from headrace.config.load import load_config
from headrace.errors import ConfigurationError


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("environment: {id: CartPole-v1}\nrun: {stop: {env_steps: 1000}}\n")
    return path


def test_show_prints_a_document_that_loads_again(document: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["show", str(document), "run.seed=9"])
    assert result.exit_code == 0
    shown = tmp_path / "shown.yaml"
    shown.write_text(result.stdout)
    assert load_config(shown) == load_config(document, ["run.seed=9"])


def test_diff_names_the_keys_with_both_values(document: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(document.read_text() + "sampler: {count: 4}\n")
    lines = CliRunner().invoke(app, ["diff", str(document.parent), str(other)]).stdout.splitlines()
    assert lines[0].split()[0] == config_digest(load_config(document))
    assert lines[2:] == ["sampler.count: 1 -> 4"]


def test_diff_of_equal_documents_says_so(document: Path) -> None:
    assert CliRunner().invoke(app, ["diff", str(document), str(document)]).stdout.splitlines()[-1] == "equal"


def test_schema_is_json_and_docs_is_the_page() -> None:
    assert json.loads(CliRunner().invoke(app, ["schema"]).stdout)["type"] == "object"
    assert CliRunner().invoke(app, ["docs"]).stdout.startswith("# Configuration")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not the folder of a run"):
        document_of(tmp_path)


def test_the_version_is_one_line() -> None:
    from headrace import __version__
    from headrace.cli.main import app as headrace

    result = CliRunner().invoke(headrace, ["--version"])
    assert (result.exit_code, result.stdout.strip()) == (0, __version__)
