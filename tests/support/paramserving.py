"""Parameter servers for tests: in this process on a real channel, or as a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from prometheus_client import CollectorRegistry

from headrace.checkpoint import Blob, VersionRecord
from headrace.config.digest import config_document
from headrace.config.sections import Config
from headrace.events import EventLog
from headrace.registry import read_records
from headrace.rpc.handshake import Handshake
from headrace.types import Array, LearnerAccount, PolicyVersion, SamplerIdentity, TrainingReport
from services.paramserver.assembly import Paramserver
from services.paramserver.config import Settings
from services.paramserver.core import ParameterServer
from services.paramserver.metrics import ParamserverMetrics
from services.paramserver.versions import Update

PATIENCE_S = 60.0  # for what takes far less: a deadline of tests is not a measurement


def make_config(**sections: Any) -> Config:
    defaults = {"environment": {"id": "CartPole-v1"}, "run": {"stop": {"updates": 10**6}}}
    return Config.model_validate(defaults | sections)


def make_settings(run_dir: Path, **sections: Any) -> Settings:
    return Settings.of(make_config(**sections), run_dir=run_dir, run_id="run")


def make_handshake(settings: Settings, peer: str = "learner-0") -> Handshake:
    return settings.handshake(peer)


def make_report(updates: int, **fields: Any) -> TrainingReport:
    values: dict[str, Any] = {
        "env_steps": updates * 128,
        "updates": updates,
        "samples_trained": updates * 512,
        "episodes": updates,
        "episode_return_mean": None,
        "episode_return_std": None,
        "metrics": {"loss": 0.5},
        "policy_lags": (0, 1),
    }
    return TrainingReport(**(values | fields))


def make_parameters(value: float = 0.0, size: int = 8) -> dict[str, Array]:
    return {
        "policy/weight": np.full((size,), value, np.float32),
        "normalizer/count": np.float64(3).reshape(()),
    }


def make_account(
    sampler: str = "sampler-0", settled: int = 0, trained: int = 0, **dropped: int
) -> LearnerAccount:
    return LearnerAccount(SamplerIdentity(sampler, 0), settled, trained, dropped)


def make_update(base: PolicyVersion | None, updates: int, **fields: Any) -> Update:
    values: dict[str, Any] = {
        "base": base,
        "report": make_report(updates),
        "accounts": (),
        "acting": Blob.encode(make_parameters(updates)),
        "training": Blob.encode({"optimizer": np.full(3, updates, np.float32)}),
    }
    return Update(**(values | fields))


def make_record(number: int, *, epoch: int = 1, **fields: Any) -> VersionRecord:
    values: dict[str, Any] = {
        "version": PolicyVersion(epoch, number),
        "run_id": "run",
        "config_digest": "0123456789abcdef",
        "config_json": '{"run":{"seed":1}}',
        "report": make_report(number),
        "accounts": (make_account(settled=number, trained=number * 128, stale=1),),
        "acting": Blob.encode(make_parameters(number)),
        "training": Blob.encode({"optimizer": np.full(3, number, np.float32)}),
    }
    return VersionRecord(**(values | fields))


def open_core(settings: Settings, **arguments: Any) -> ParameterServer:
    return ParameterServer(
        settings,
        events=EventLog(settings.run_dir, "paramserver-0"),
        metrics=ParamserverMetrics(CollectorRegistry()),
        **arguments,
    )


@contextmanager
def serving(settings: Settings, listen: str = "127.0.0.1:0") -> Iterator[Paramserver]:
    paramserver = Paramserver(
        settings,
        listen=listen,
        name="paramserver-0",
        events=EventLog(settings.run_dir, "paramserver-0"),
        metrics=ParamserverMetrics(CollectorRegistry()),
    )
    try:
        yield paramserver
    finally:
        paramserver.close()


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"did not happen: {what}"
        time.sleep(0.01)


class ParamserverProcess:
    """A parameter server in a process of its own; it keeps its port over restarts."""

    name = "paramserver-0"

    def __init__(self, run_dir: Path, config: Config) -> None:
        self.run_dir = run_dir
        self.address = "127.0.0.1:0"
        self._config_path = run_dir / "config.yaml"
        self._config_path.write_text(yaml.safe_dump(config_document(config)), "utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.run_dir / "services" / f"{self.name}.json").unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "services.paramserver", "--config", str(self._config_path)),
                *("--run-dir", str(self.run_dir), "--run-id", "run", "--listen", self.address),
                *self.flags(),
            ],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        process = self._process
        eventually(lambda: self._listens() or process.poll() is not None, f"{self.name} listens")
        assert process.poll() is None, f"{self.name} ended with {process.returncode}"

    def flags(self) -> tuple[str, ...]:
        return ()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    def _listens(self) -> bool:
        found = [record for record in read_records(self.run_dir) if record.name == self.name]
        self.address = found[0].address if found else self.address
        return bool(found)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(PATIENCE_S)
        self._process = None
        return code


class RelayProcess(ParamserverProcess):
    """A relay in a process of its own, which watches ``upstream``."""

    def __init__(self, run_dir: Path, config: Config, upstream: str, index: int = 0) -> None:
        super().__init__(run_dir, config)
        self.name = f"relay-{index}"
        self._flags = ("--relay", "--paramserver", upstream, "--index", str(index))

    def flags(self) -> tuple[str, ...]:
        return self._flags
