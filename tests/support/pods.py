"""Service processes started as a cluster does it: by HEADRACE_* variables, each with a folder of its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from local_run import environment, write_document

from headrace.clients.run import RunClient
from headrace.config.digest import config_digest
from headrace.config.load import load_config
from headrace.errors import UnavailableError
from headrace.local.ports import pick_port
from headrace.rpc.handshake import Handshake
from headrace.rpc.probes import ask
from headrace.types import LedgerGlance, RunView

DEADLINE_S = 120.0
_HOST = "127.0.0.1"
_POLL_S = 0.05


class Pod:
    """One process; ``folder`` is what it keeps when its container is started again."""

    def __init__(self, name: str, module: str, folder: Path, variables: dict[str, str]) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.health = f"{_HOST}:{variables['HEADRACE_HEALTH_PORT']}"
        self._command = [sys.executable, "-P", "-m", f"services.{module}"]
        self._variables = {**environment(), **variables}
        self.log_path = folder.with_suffix(".log")
        self.process = self._spawn()

    @property
    def ready(self) -> bool:
        """What a readiness probe finds."""
        return ask(self.health)

    @property
    def alive(self) -> bool:
        """What a liveness probe finds."""
        return ask(self.health, "liveness")

    def restart_container(self) -> None:
        """SIGKILL, and the same pod again: name and folder stay."""
        self.kill()
        self.process = self._spawn()

    def replace(self, **variables: str) -> None:
        """SIGTERM, and the pod of a changed template in its place."""
        self.terminate()
        self._variables |= variables
        self.process = self._spawn()

    def log_says(self, words: str) -> bool:
        """Whether ``words`` are in what it has logged."""
        return words in self.log_path.read_text("utf-8")

    def kill(self) -> None:
        """SIGKILL, as when a node is gone."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                self._command,
                env=self._variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


class Pods:
    """The pods of one run. Leaving the block ends them, whatever happened."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.document = write_document(folder, document)
        self.config = load_config(self.document)
        self._rng, self._taken = random.Random(), set[int]()
        self._ports = {
            "paramserver": [self._port()],
            "learner": [self._port() for _ in range(self.config.learner.count)],
            "replay": [self._port() for _ in range(self.config.replay.partitions)],
        }
        self.pods: list[Pod] = []
        self._names = 0
        handshake = Handshake("run", config_digest(self.config), peer="test")
        self.client = RunClient(self._addresses("paramserver"), handshake)

    def __enter__(self) -> Pods:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        for pod in self.pods:
            pod.kill()

    def stateful(self, service: str, index: int = 0, **variables: str) -> Pod:
        """A pod with a name and a port that stay."""
        listen = f"{_HOST}:{self._ports[service][index]}"
        return self._start(
            f"{service}-{index}", service, listen, HEADRACE_INDEX=f"{service}-{index}", **variables
        )

    def sampler(self, **variables: str) -> Pod:
        """One more pod of the samplers' deployment."""
        self._names += 1
        return self._start(
            f"sampler-x{self._names}", "sampler", f"{_HOST}:0", HEADRACE_INDEX="auto", **variables
        )

    def port(self, service: str, index: int = 0) -> str:
        """Where a stateful pod serves."""
        return str(self._ports[service][index])

    def view(self) -> RunView | None:
        """The run, None while the paramserver can't be reached."""
        try:
            return self.client.state()
        except UnavailableError:
            return None

    def ledger(self) -> LedgerGlance:
        """The books of the paramserver."""
        return self.client.ledger(timeout_s=DEADLINE_S)

    def newest_number(self) -> int:
        """Number of the newest version, -1: none is known."""
        view = self.view()
        return -1 if view is None or view.status.version is None else view.status.version.number

    def trained(self) -> int:
        """Environment steps of the newest version."""
        view = self.view()
        return 0 if view is None or view.report is None else view.report.env_steps

    def wait_until(self, condition: Callable[[], bool], *, what: str) -> None:
        """Poll until it is so; the ends of all logs say why it never was."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(
                    f"== {pod.name}\n{pod.log_path.read_text('utf-8')[-1500:]}" for pod in self.pods
                )
                raise AssertionError(f"it never came to this: {what}\n{logs}")
            time.sleep(_POLL_S)

    def train(self, steps: int) -> None:
        """Wait until so many more steps are trained on."""
        goal = self.trained() + steps
        self.wait_until(lambda: self.trained() >= goal, what=f"{steps} more steps are trained on")

    def members(self) -> list[str]:
        """Pods of the samplers that have a place, in order of their numbers."""
        return [member.name for member in self.ledger().members]

    def _start(self, name: str, module: str, listen: str, **variables: str) -> Pod:
        pod = Pod(
            name,
            module,
            self._folder / name,
            {
                "HEADRACE_CONFIG": str(self.document),
                "HEADRACE_RUN_ID": "run",
                "HEADRACE_RUN_DIR": str(self._folder / name),
                "HEADRACE_POD": name,
                "HEADRACE_LISTEN": listen,
                "HEADRACE_ADVERTISE": listen,
                "HEADRACE_HEALTH_PORT": str(self._port()),
                "HEADRACE_PARAMSERVER": self._addresses("paramserver"),
                "HEADRACE_LEARNER": self._addresses("learner"),
                "HEADRACE_REPLAY": self._addresses("replay"),
                "HEADRACE_LINGER": "true",
                **variables,
            },
        )
        self.pods.append(pod)
        return pod

    def _addresses(self, service: str) -> str:
        return ",".join(f"{_HOST}:{port}" for port in self._ports[service])

    def _port(self) -> int:
        return pick_port(_HOST, self._rng, self._taken)
