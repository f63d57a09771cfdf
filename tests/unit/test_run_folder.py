"""The folder of a run: its name, its contents, and who may work in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.config.digest import config_digest
from headrace.config.load import load_config
from headrace.config.sections import Config
from headrace.errors import ConfigurationError
from headrace.local.run_folder import (
    FolderLock,
    RunFolder,
    create,
    default_name,
    folder_problems,
    resume_problems,
    take_up,
)

NOW = datetime(2026, 11, 30, 9, 5, 7)


def _config(**run: Any) -> Config:
    return Config.model_validate(
        {"environment": {"id": "CartPole-v1"}, "run": {"seed": 3, "stop": {"updates": 1}, **run}}
    )


def test_the_name_says_environment_algorithm_seed_and_time() -> None:
    assert default_name(_config(), NOW) == "CartPole-v1__ppo__3__20261130-090507"
    assert default_name(_config(name="my try"), NOW) == "CartPole-v1__ppo__3__20261130-090507__my-try"


def test_the_name_of_an_environment_never_leaves_the_folder() -> None:
    config = Config.model_validate(
        {"environment": {"id": "../../ale_py:ALE/Pong-v5"}, "run": {"stop": {"updates": 1}}}
    )
    assert "/" not in default_name(config, NOW)


def test_a_new_folder_holds_the_resolved_configuration_and_an_identity(tmp_path: Path) -> None:
    folder, config = RunFolder(tmp_path / "deep" / "run"), _config()
    create(folder, config, NOW)
    assert load_config(folder.config) == config
    assert folder.config.read_text().splitlines()[0] == f"# config_digest: {config_digest(config)}"
    assert json.loads(folder.identity.read_text())["config_digest"] == config_digest(config)
    assert re.fullmatch(r"CartPole-v1__ppo__3__20261130-090507__[0-9a-f]{6}", folder.run_id)
    for name in ("checkpoints", "quarantine", "tb", "plots", "logs"):
        assert (folder.path / name).is_dir()


def test_two_runs_of_the_same_second_have_different_ids(tmp_path: Path) -> None:
    folders = [RunFolder(tmp_path / name) for name in "ab"]
    for folder in folders:
        create(folder, _config(), NOW)
    assert folders[0].run_id != folders[1].run_id


def test_a_resumed_run_keeps_its_id_and_its_earlier_configuration(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    create(folder, _config(), NOW)
    run_id = folder.run_id
    longer = _config(stop={"updates": 2})
    take_up(folder, longer)
    take_up(folder, longer)
    assert folder.run_id == run_id
    assert load_config(folder.config) == longer
    assert load_config(folder.path / "config.1.yaml") == _config()
    assert not (folder.path / "config.2.yaml").exists()


def test_an_existing_folder_is_refused_unless_it_is_empty(tmp_path: Path) -> None:
    assert folder_problems(tmp_path / "new" / "run") == []
    assert folder_problems(tmp_path) == []
    (tmp_path / "something").touch()
    (problem,) = folder_problems(tmp_path)
    assert "isn't empty, and it isn't the folder of a run" in problem
    run = RunFolder(tmp_path / "run")
    create(run, _config(), datetime(2026, 1, 1))
    (problem,) = folder_problems(run.path)
    assert f"use --resume {run.path}" in problem
    (problem,) = folder_problems(tmp_path / "something")
    assert "is a file" in problem
    (problem,) = folder_problems(tmp_path / "something" / "run")
    assert "is a file" in problem


def test_resuming_something_else_is_refused(tmp_path: Path) -> None:
    (problem,) = resume_problems(RunFolder(tmp_path / "none"))
    assert "there is no folder" in problem
    (problem,) = resume_problems(RunFolder(tmp_path))
    assert "isn't the folder of a run" in problem


def test_an_identity_that_cannot_be_read_is_an_error_in_words(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.identity.write_text("{}")
    with pytest.raises(ConfigurationError, match="is not the folder of a run"):
        _ = folder.run_id


def test_no_two_launchers_work_in_one_folder(tmp_path: Path) -> None:
    lock = FolderLock(RunFolder(tmp_path))
    lock.acquire()
    other = (
        "from pathlib import Path\n"
        "from headrace.local.run_folder import FolderLock, RunFolder\n"
        f"FolderLock(RunFolder(Path({str(tmp_path)!r}))).acquire()\n"
    )
    refused = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "another headrace is running in this folder" in refused.stderr
    lock.release()
    assert subprocess.run([sys.executable, "-c", other], capture_output=True, check=False).returncode == 0
