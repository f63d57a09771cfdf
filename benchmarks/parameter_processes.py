"""The processes of the benchmarks of parameters and of rounds: a parameter server, and relays of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from headrace.config.digest import config_document
from headrace.config.sections import Config
from headrace.local.process import MALLOC_ENVIRONMENT
from headrace.registry import read_records
from services.paramserver.config import Settings

DEADLINE_S = 120.0
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves watches."""

    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class Servers:
    """A parameter server, and after it relays in a row: each watches the one before it."""

    settings: Settings
    chain: tuple[Server, ...]


def start(module: str, *arguments: str, log: Path | None = None) -> subprocess.Popen[str]:
    """A process of ours with the settings of every service. ``log``: where its own log goes."""
    with ExitStack() as stack:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if log is None else stack.enter_context(log.open("w")),
            text=True,
            cwd=ROOT,
            env={**os.environ, **MALLOC_ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        )


@contextmanager
def servers(relays: int, max_watchers: int = 256) -> Iterator[Servers]:
    """A run of one learner, until the block is left."""
    document: dict[str, Any] = {
        "environment": {"id": "CartPole-v1"},
        "run": {"stop": {"updates": 10**9}},
        "paramserver": {"checkpoint_every": 10**9, "max_watchers": max_watchers},
    }
    with serving(Config.model_validate(document), relays) as chain:
        yield chain


@contextmanager
def serving(config: Config, relays: int = 0) -> Iterator[Servers]:
    """Serve a run of ``config`` until the block is left."""
    with ExitStack() as stack:
        run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (run_dir / "config.yaml").write_text(yaml.safe_dump(config_document(config)), "utf-8")
        settings = Settings.of(config, run_dir=run_dir, run_id="benchmark")
        chain = [stack.enter_context(_server(run_dir, "paramserver-0"))]
        for index in range(relays):
            flags = ("--relay", "--paramserver", chain[-1].address, "--index", str(index))
            chain.append(stack.enter_context(_server(run_dir, f"relay-{index}", *flags)))
        yield Servers(settings, tuple(chain))


@contextmanager
def _server(run_dir: Path, name: str, *flags: str) -> Iterator[Server]:
    process = start(
        "services.paramserver",
        *("--config", str(run_dir / "config.yaml"), "--run-dir", str(run_dir), "--run-id", "benchmark"),
        *flags,
        log=_log(run_dir, name),
    )
    try:
        yield Server(_wait_for_address(run_dir, name, process), process.pid)
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _wait_for_address(run_dir: Path, name: str, process: subprocess.Popen[str]) -> str:
    """Where the server listens, once it does."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = [record.address for record in read_records(run_dir) if record.name == name]
        if found:
            return found[0]
        if process.poll() is not None or time.monotonic() > deadline:
            said = _log(run_dir, name).read_text("utf-8", "replace")
            raise RuntimeError(f"{name} did not start:\n{said}")
        time.sleep(0.05)


def _log(run_dir: Path, name: str) -> Path:
    return run_dir / f"{name}.log"
