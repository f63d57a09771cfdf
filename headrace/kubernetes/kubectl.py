"""``kubectl`` as a program: apply an overlay, reach the paramserver through a port-forward."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from headrace.errors import ConfigurationError, HeadraceError, UnavailableError

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")
_READY_S = 60.0
_END_S = 5.0


class Kubectl:
    """Calls of ``kubectl`` in one context and namespace; None: those that it uses by itself."""

    def __init__(self, *, context: str | None = None, namespace: str | None = None) -> None:
        """ConfigurationError: there is no kubectl."""
        program = shutil.which("kubectl")
        if program is None:
            raise ConfigurationError(["--target: kubernetes needs `kubectl`, which isn't on the path."])
        self._program = program
        self._where = [
            *(["--context", context] if context else []),
            *(["--namespace", namespace] if namespace else []),
        ]

    def build(self, overlay: Path) -> str:
        """The manifests of an overlay, as YAML. HeadraceError: kustomize's own words."""
        return self._call(["kustomize", str(overlay)])

    def apply(self, overlay: Path) -> str:
        """Apply it; returns what was changed. HeadraceError: the cluster's own words."""
        return self._call([*self._where, "apply", "-k", str(overlay)])

    def forward(self, target: str, port: int) -> PortForward:
        """Reach ``port`` of ``target`` (such as ``service/paramserver``) on this machine."""
        return PortForward([self._program, *self._where, "port-forward", target, f":{port}"])

    def command(self, *arguments: str) -> str:
        """How a person would write that call."""
        return " ".join(["kubectl", *self._where, *arguments])

    def _call(self, arguments: Sequence[str]) -> str:
        done = subprocess.run([self._program, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise HeadraceError(f"kubectl {arguments[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


class PortForward:
    """One ``kubectl port-forward`` for as long as the block lasts. It ends by itself when its pod does."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self.port = 0
        """Where it listens on 127.0.0.1, once it does."""

    def __enter__(self) -> PortForward:
        """Start it. UnavailableError: it did not come up; there may be no pod yet."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        words: list[str] = []
        deadline = threading.Timer(_READY_S, self._process.kill)
        deadline.start()
        try:
            self.port = self._find_port()
        finally:
            deadline.cancel()
        if not self.port:
            words.append(self._process.stderr.read().strip() if self._process.stderr else "")
            self._end()
            raise UnavailableError(words[0] or "kubectl port-forward ended without a word")
        self._drain_output()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _find_port(self) -> int:
        for line in self._process.stdout or ():
            if found := _FORWARDING.search(line):
                return int(found[1])
        return 0

    def _drain_output(self) -> None:
        """It writes a line for each connection; nobody may make it wait for a reader."""
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                read: Callable[[], object] = stream.read
                threading.Thread(target=read, name="kubectl-output", daemon=True).start()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
