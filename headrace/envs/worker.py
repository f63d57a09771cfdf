"""A worker process: steps its share of the lanes into shared memory, one command at a time.

Started by :mod:`headrace.envs.workers` as ``python -P -m headrace.envs.worker``, never by hand. It
imports nothing of Headrace but environments, so that a user's environment shares a process with little
else. It ignores SIGINT and ends with its parent, even while an environment hangs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading

import numpy as np

from headrace.config.sections import EnvironmentConfig
from headrace.envs import shared
from headrace.envs.backend import Report
from headrace.envs.spec import EnvironmentSpec
from headrace.envs.sync import SyncBackend

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve commands until told to quit or until the parent is gone."""
    memory_fd, socket_fd, lifeline_fd, parent, from_main_thread = (int(text) for text in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(parent, lifeline_fd, from_main_thread=bool(from_main_thread))
    connection = socket.socket(fileno=socket_fd)
    plain = shared.receive_json(connection)
    spec = EnvironmentSpec.from_json(plain["spec"])
    block = shared.SharedBlock(memory_fd, spec, plain["num_lanes"], plain["num_workers"])
    lanes = range(*plain["lanes"])
    backend = SyncBackend(
        EnvironmentConfig.model_validate(plain["environment"]),
        spec,
        block.part(lanes),
        marks=block.marks[plain["worker"]],
    )
    actions = {path: array[lanes.start : lanes.stop] for path, array in block.actions.items()}
    chosen = block.chosen[lanes.start : lanes.stop]
    seeds = block.seeds[lanes.start : lanes.stop]
    while True:
        command = connection.recv(1)
        if command == shared.STEP_ALL:
            shared.send_report(connection, backend.step(actions, None), expected=0)
            continue
        if command in (b"", shared.QUIT):
            backend.close()
            return 0
        few: list[int] = np.flatnonzero(chosen).tolist()
        shared.send_report(
            connection, _few(backend, command, few, actions, seeds), expected=_begins(command, few)
        )


def _few(
    backend: SyncBackend,
    command: bytes,
    lanes: list[int],
    actions: dict[str, np.ndarray],
    seeds: np.ndarray,
) -> Report:
    """Run a command that is about the chosen lanes."""
    if command == shared.STEP_SOME:
        return backend.step(actions, lanes)
    if command == shared.BEGIN:
        return backend.begin(lanes)
    return backend.rebuild(lanes, [int(seeds[lane]) for lane in lanes])


def _begins(command: bytes, lanes: list[int]) -> int:
    return 0 if command == shared.STEP_SOME else len(lanes)


def _die_with_parent(parent: int, lifeline_fd: int, *, from_main_thread: bool) -> None:
    """End when the parent ends: by the kernel on Linux, and by a pipe that only the parent holds open.

    The kernel's signal follows the thread that started this process, so it is asked for only if that is
    the parent's main thread.
    """
    if from_main_thread and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)

    def watch() -> None:
        with contextlib.suppress(OSError):
            os.read(lifeline_fd, 1)
        os._exit(0)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
