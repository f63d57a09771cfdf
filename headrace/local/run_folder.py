"""The folder of a run: where everything lies, how it is named, made and taken up again."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from headrace import __version__
from headrace.config.digest import config_digest
from headrace.config.load import dump_yaml
from headrace.config.sections import Config
from headrace.errors import ConfigurationError

RUNS = Path("runs")
_SUBFOLDERS = ("checkpoints", "quarantine", "tb", "plots", "logs", "accounts", "services")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run. Making this value touches nothing on disk."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration, its digest in the first line."""
        return self.path / "config.yaml"

    @property
    def identity(self) -> Path:
        """``run.json``: the run's id and what made it."""
        return self.path / "run.json"

    @property
    def summary(self) -> Path:
        """``summary.json``."""
        return self.path / "summary.json"

    @property
    def metrics(self) -> Path:
        """``metrics.jsonl``."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints by version, with ``latest`` and ``best``."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's files."""
        return self.path / "tb"

    @property
    def security(self) -> Path:
        """Credentials, where the configuration demands any; for this user only."""
        return self.path / "security"

    @property
    def tls(self) -> Path:
        """Certificate and key."""
        return self.security / "tls"

    @property
    def plot(self) -> Path:
        """The learning curve."""
        return self.path / "plots" / "learning_curve.png"

    def log(self, service: str, index: int) -> Path:
        """Output of one process, over all its lives."""
        return self.path / "logs" / f"{service}-{index}.log"

    @property
    def run_id(self) -> str:
        """Identity of the run; stays the same when it is resumed. ConfigurationError if unreadable."""
        try:
            return str(json.loads(self.identity.read_text("utf-8"))["run_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                [f"{self.path}: is not the folder of a run (no readable run.json)"]
            ) from error


def default_name(config: Config, now: datetime) -> str:
    """``<env>__<algorithm>__<seed>__<time>``, with the run's own name at the end if it has one."""
    parts = [
        _slug(config.environment.id),
        config.algorithm.name,
        str(config.run.seed),
        now.strftime("%Y%m%d-%H%M%S"),
    ]
    if config.run.name:
        parts.append(_slug(config.run.name))
    return "__".join(parts)


def create(folder: RunFolder, config: Config, now: datetime) -> None:
    """Make the folder and write configuration and identity. OSError if the disk doesn't let us."""
    folder.path.mkdir(parents=True, exist_ok=True)
    for name in _SUBFOLDERS:
        (folder.path / name).mkdir(exist_ok=True)
    identity: dict[str, Any] = {
        "run_id": f"{default_name(config, now)}__{secrets.token_hex(3)}",
        "created": now.astimezone().isoformat(timespec="seconds"),
        "config_digest": config_digest(config),
        "headrace_version": __version__,
    }
    write_atomically(folder.config, dump_yaml(config))
    write_atomically(folder.identity, json.dumps(identity, indent=1) + "\n")


def take_up(folder: RunFolder, config: Config) -> None:
    """Prepare an existing folder for a resumed run; an earlier, different configuration is kept beside it."""
    for name in _SUBFOLDERS:
        (folder.path / name).mkdir(exist_ok=True)
    text = dump_yaml(config)
    before = folder.config.read_text("utf-8")
    if before != text:
        number = sum(1 for _ in folder.path.glob("config.*.yaml")) + 1
        write_atomically(folder.path / f"config.{number}.yaml", before)
        write_atomically(folder.config, text)
    for record in (folder.path / "services").glob("*.json"):
        record.unlink(missing_ok=True)  # of processes that are gone


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` so that a reader, or a crash, sees the old or the new, whole."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class FolderLock:
    """Held by the launcher for as long as it lives, so that no two work in one folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.path / ".lock"
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take it. ConfigurationError if another launcher has it."""
        file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise ConfigurationError(
                [f"{self._path.parent}: another headrace is running in this folder"]
            ) from error
        self._file = file

    def release(self) -> None:
        """Give it back."""
        if self._file is not None:
            self._file.close()
            self._file = None


def folder_problems(path: Path) -> list[str]:
    """Why a new run can't be made at ``path``; touches nothing that would stay."""
    if path.exists() and not path.is_dir():
        return [f"--run-dir: {path} is a file"]
    if path.exists() and any(path.iterdir()):
        if not_a_run(RunFolder(path), "--run-dir"):
            return [f"--run-dir: {path} isn't empty, and it isn't the folder of a run; choose another one"]
        return [f"--run-dir: {path} exists and isn't empty; use --resume {path} to go on with it"]
    nearest = path
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir():
        return [f"--run-dir: {nearest} is a file"]
    if not os.access(nearest, os.W_OK | os.X_OK):
        return [f"--run-dir: {nearest} isn't writable"]
    return []


def not_a_run(folder: RunFolder, argument: str) -> list[str]:
    """Why ``folder`` can't be taken for that of a run; ``argument`` is where somebody named it."""
    path = folder.path
    if path.is_file():
        return [f"{argument}: {path} is a file; give the folder of a run"]
    if not path.is_dir():
        return [f"{argument}: there is no folder {path}"]
    missing = [file.name for file in (folder.config, folder.identity) if not file.is_file()]
    if missing:
        return [f"{argument}: {path} isn't the folder of a run (it has no {' and no '.join(missing)})"]
    return []


def resume_problems(folder: RunFolder) -> list[str]:
    """Why the run in ``folder`` can't be resumed."""
    problems = not_a_run(folder, "--resume")
    if not problems and not os.access(folder.path, os.W_OK | os.X_OK):
        return [f"--resume: {folder.path} isn't writable"]
    return problems


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-") or "run"
