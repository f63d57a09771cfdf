"""A training run that goes on while a test watches it, and kills parts of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from local_run import FinishedRun, command, environment, read_summary, write_document

from headrace.clients.run import RunClient
from headrace.errors import HeadraceError
from headrace.registry import ServiceRecord, read_records
from headrace.rpc.handshake import Handshake
from headrace.types import PolicyVersion, RunView

DEADLINE_S = 240.0
_POLL_S = 0.05


class LiveRun:
    """`headrace train` in the background. Leaving the block ends it, whatever happened."""

    def __init__(self, tmp_path: Path, document: dict[str, Any], *arguments: str) -> None:
        self.folder = tmp_path / "run"
        self._log = (tmp_path / "train.log").open("wb")
        started = command(
            "train", str(write_document(tmp_path, document)), "--run-dir", str(self.folder), *arguments
        )
        self.process = subprocess.Popen(
            started, env=environment(), stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.log_path = tmp_path / "train.log"
        self._client: RunClient | None = None
        self.seen: list[PolicyVersion] = []
        """Versions in the order in which :meth:`advance` saw them."""

    def __enter__(self) -> LiveRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._log.close()
        if self._client is not None:
            self._client.close()

    def record(self, name: str) -> ServiceRecord | None:
        """Where a process listens, once it does."""
        return next((record for record in read_records(self.folder) if record.name == name), None)

    def view(self) -> RunView | None:
        """State of the run; None while the paramserver doesn't answer."""
        if self._client is None:
            record = self.record("paramserver-0")
            if record is None:
                return None
            self._client = RunClient(record.address, Handshake("", ""))
        try:
            return self._client.state(timeout_s=1.0)
        except HeadraceError:
            return None

    def updates(self) -> int:
        """Updates published so far, -1 while nobody can tell."""
        view = self.view()
        return -1 if view is None or view.report is None else view.report.updates

    def advance(self, updates: int) -> None:
        """Wait until the run has made ``updates`` more updates than now, noting every version seen."""
        goal = max(self.updates(), 0) + updates

        def reached() -> bool:
            view = self.view()
            if view is None or view.status.version is None or view.report is None:
                return False
            self.seen.append(view.status.version)
            return view.report.updates >= goal

        self.wait_until(reached, f"update {goal}")

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Look again and again until ``condition`` holds; fails the test if the run ends or time is up."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.output()}"
            assert time.monotonic() < deadline, f"no {what} within {DEADLINE_S:.0f} s:\n{self.output()}"
            time.sleep(_POLL_S)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a service's process and wait until the launcher has started a new one.

        Returns the pid that was hit.
        """
        self.wait_until(lambda: self.pid(name) is not None, f"record of {name}")
        pid = self.pid(name)
        assert pid is not None
        os.kill(pid, number)
        self.wait_until(lambda: self.pid(name) not in (None, pid), f"restart of {name}")
        return pid

    def pid(self, name: str) -> int | None:
        """The process that serves under this name, as it says itself; Redis has a file of its own for it."""
        if name == "redis-0":
            path = self.folder / "redis" / "redis.pid"
            text = path.read_text("utf-8").strip() if path.exists() else ""
            return int(text) if text else None
        record = self.record(name)
        return None if record is None else record.pid

    def finish(self) -> FinishedRun:
        """Wait for the end."""
        self.process.wait(timeout=DEADLINE_S)
        return FinishedRun(self.process.returncode, self.output(), self.folder, read_summary(self.folder))

    def output(self) -> str:
        """What the command line has said so far."""
        return self.log_path.read_text("utf-8", "replace")[-4000:]
