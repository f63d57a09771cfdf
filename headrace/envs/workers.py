"""Environments in spawned worker processes: one that hangs or exits costs only its own worker.

The lanes are spread over the workers in contiguous shares. A worker that exits is noticed at once, one
whose environment doesn't return within ``step_timeout_s`` is killed. Its replacement starts and builds
its environments in the background, while the lanes of the other workers go on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from headrace.config.sections import EnvironmentConfig
from headrace.envs import shared
from headrace.envs.backend import FAULT_EXIT, FAULT_HANG, LaneArrays, LaneFault, Report
from headrace.envs.spec import EnvironmentSpec
from headrace.types import Array

_BOOT_S = 60.0  # starting an interpreter and importing the environment's module may take this long
_LOOK_S = 0.2  # between two looks at whether a silent worker is alive and gets on
_QUIT_S = 1.0


class Worker:
    """One worker process and what it was last told. Lives as long as its share of the lanes."""

    def __init__(self, index: int, lanes: range) -> None:
        self.index = index
        self.lanes = lanes
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket | None = None
        self.lifeline: int | None = None
        self.told: list[int] | None = None  # lanes that its command begins; None: it is idle
        self.waiting: dict[int, int] = {}  # lanes of a dead worker that may be rebuilt, with seeds
        self.seen: tuple[int, int] = (0, 0)
        self.deadline = 0.0


class AsyncBackend:
    """Steps B environments in worker processes.

    Invariant: between two calls every worker is idle, dead, or starting in the background (``told``).
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        spec: EnvironmentSpec,
        num_lanes: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        count = min(config.workers, num_lanes)
        self._config = config
        self._spec = spec
        self._clock = clock
        self._num_lanes = num_lanes
        self._memory_fd = shared.create(spec, num_lanes, count)
        self._block = shared.SharedBlock(self._memory_fd, spec, num_lanes, count)
        self.arrays: LaneArrays = self._block.lanes
        self.seeds = self._block.seeds
        edges = [num_lanes * i // count for i in range(count + 1)]
        self._workers = [Worker(i, range(edges[i], edges[i + 1])) for i in range(count)]
        self._of_lane = [worker for worker in self._workers for _ in worker.lanes]

    def start(self, seeds: Sequence[int]) -> Report:
        """Start every worker; waits until all environments are built and reset."""
        self.rebuild(range(self._num_lanes), seeds)
        report = Report()
        for worker in self._workers:
            self._await(worker, report)
        return report

    def step(self, actions: dict[str, Array], lanes: Sequence[int] | None) -> Report:
        """Step ``lanes`` (None: all) and take in whatever has come back in the background."""
        report = Report()
        for path, array in self._block.actions.items():
            array[...] = actions[path]
        if lanes is None:
            busy = self._workers
            for worker in busy:
                self._tell(worker, shared.STEP_ALL, [])
        else:
            busy = self._choose(lanes)
            for worker in busy:
                self._tell(worker, shared.STEP_SOME, [])
        background = [worker for worker in self._workers if worker.told is not None and worker not in busy]
        for worker in busy:
            self._await(worker, report)
        over = self.arrays.terminated | self.arrays.truncated
        report.ended = np.flatnonzero(over).tolist() if lanes is None else [i for i in lanes if over[i]]
        for worker in background:
            self._look(worker, report, 0.0)
        return report

    def begin(self, lanes: Sequence[int]) -> Report:
        """Reset ``lanes`` without a seed; waits for them."""
        return self._command(lanes, shared.BEGIN)

    def rebuild(self, lanes: Sequence[int], seeds: Sequence[int]) -> Report:
        """Build ``lanes`` anew: in their worker if it lives, else in a new one, in the background."""
        self.seeds[np.asarray(lanes, np.intp)] = seeds
        alive = [lane for lane in lanes if self._of_lane[lane].process is not None]
        for lane, seed in zip(lanes, seeds, strict=True):
            worker = self._of_lane[lane]
            if worker.process is None:
                worker.waiting[lane] = seed
        for worker in self._workers:
            if worker.process is None and len(worker.waiting) == len(worker.lanes):
                worker.waiting.clear()
                self._spawn(worker)
                self._block.chosen[worker.lanes.start : worker.lanes.stop] = True
                self._tell(worker, shared.REBUILD, list(worker.lanes))
                worker.deadline = self._clock() + max(_BOOT_S, self._config.step_timeout_s)
        return self._command(alive, shared.REBUILD)

    def wait(self, timeout_s: float) -> Report:
        """Wait for a worker that starts in the background, at most ``timeout_s``."""
        report = Report()
        background = [worker for worker in self._workers if worker.told is not None]
        for worker in background:
            self._look(worker, report, timeout_s / len(background))
        if not background:
            time.sleep(timeout_s)
        return report

    def progress(self) -> tuple[int, int] | None:
        """None: no environment runs in this process."""
        return None

    def close(self) -> None:
        """Tell every worker to quit and kill those that don't within a second."""
        for worker in self._workers:
            if worker.connection is not None and worker.told is None:
                with contextlib.suppress(OSError):
                    worker.connection.sendall(shared.QUIT)
        give_up = self._clock() + _QUIT_S
        for worker in self._workers:
            if worker.process is not None and worker.told is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, give_up - self._clock()))
            self._end(worker)
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1

    # -- commands

    def _command(self, lanes: Sequence[int], command: bytes) -> Report:
        """Run a command about ``lanes`` of idle workers and wait for it."""
        report = Report()
        busy = self._choose(lanes)
        chosen = set(lanes)
        for worker in busy:
            self._tell(worker, command, [lane for lane in worker.lanes if lane in chosen])
        for worker in busy:
            self._await(worker, report)
        return report

    def _choose(self, lanes: Sequence[int]) -> list[Worker]:
        """Mark the lanes that the next command is about; returns their workers."""
        busy = {self._of_lane[lane].index: self._of_lane[lane] for lane in lanes}
        for worker in busy.values():
            self._block.chosen[worker.lanes.start : worker.lanes.stop] = False
        self._block.chosen[np.asarray(lanes, np.intp)] = True
        return list(busy.values())

    def _tell(self, worker: Worker, command: bytes, begins: list[int]) -> None:
        worker.told = begins
        worker.seen = self._marks(worker)
        worker.deadline = self._clock() + self._config.step_timeout_s
        assert worker.connection is not None
        with contextlib.suppress(OSError):  # a dead worker is noticed when its reply is awaited
            worker.connection.sendall(command)

    def _await(self, worker: Worker, report: Report) -> None:
        while worker.told is not None:
            left_s = max(worker.deadline - self._clock(), 1e-3)
            self._look(worker, report, min(_LOOK_S, left_s))

    def _look(self, worker: Worker, report: Report, timeout_s: float) -> None:
        """Take in a reply if there is one within ``timeout_s``; end the worker if it is dead or hangs."""
        assert worker.connection is not None
        assert worker.process is not None
        assert worker.told is not None
        worker.connection.settimeout(timeout_s)
        try:
            reply = shared.receive_report(worker.connection, worker.lanes, worker.told)
        except (TimeoutError, BlockingIOError):
            if worker.process.poll() is None:
                self._check_progress(worker, report)
                return
            reply = None
        if reply is None:
            self._lose(worker, report, FAULT_EXIT)
            return
        worker.told = None
        report.began += reply.began
        report.faults += reply.faults

    def _check_progress(self, worker: Worker, report: Report) -> None:
        marks = self._marks(worker)
        if marks != worker.seen:
            worker.seen = marks
            worker.deadline = self._clock() + self._config.step_timeout_s
        elif self._clock() >= worker.deadline:
            self._lose(worker, report, FAULT_HANG)

    def _lose(self, worker: Worker, report: Report, reason: str) -> None:
        """Report all lanes of a worker as failed, blaming the one it was at, and end what is left of it."""
        culprit, _ = self._marks(worker)
        code = self._end(worker)
        if reason == FAULT_HANG:
            cause = f"did not return within {self._config.step_timeout_s:g} s"
        else:
            cause = f"ended its process (exit code {code})"
        guilty = worker.lanes[culprit] if 0 <= culprit < len(worker.lanes) else None
        for lane in worker.lanes:
            if guilty is None:
                detail = f"worker {worker.index} {cause}"
            elif lane == guilty:
                detail = f"the environment {cause}"
            else:
                detail = f"the environment of lane {guilty}, in the same worker, {cause}"
            report.faults.append(LaneFault(lane, reason, detail, guilty in (None, lane)))

    def _marks(self, worker: Worker) -> tuple[int, int]:
        lane, calls = self._block.marks[worker.index].tolist()
        return lane, calls

    # -- processes

    def _spawn(self, worker: Worker) -> None:
        """Start the worker's process and tell it what it is; doesn't wait for it."""
        ours, theirs = socket.socketpair()
        read_end, worker.lifeline = os.pipe()
        self._block.marks[worker.index] = (-1, 0)
        from_main = threading.current_thread() is threading.main_thread()
        numbers = (self._memory_fd, theirs.fileno(), read_end, os.getpid(), int(from_main))
        worker.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "headrace.envs.worker", *map(str, numbers)],
            pass_fds=numbers[:3],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_search_path(sys.path))},
            start_new_session=True,  # a Ctrl-C in the terminal is for the launcher alone
        )
        theirs.close()
        os.close(read_end)
        worker.connection = ours
        plain = {
            "environment": self._config.model_dump(mode="json"),
            "spec": self._spec.to_json(),
            "num_lanes": self._num_lanes,
            "num_workers": len(self._workers),
            "worker": worker.index,
            "lanes": [worker.lanes.start, worker.lanes.stop],
        }
        with contextlib.suppress(OSError):
            shared.send_json(ours, plain)

    def _end(self, worker: Worker) -> int | None:
        """Kill what is left of the worker; returns its exit code."""
        code = None
        if worker.process is not None:
            worker.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = worker.process.wait(_QUIT_S)
        if worker.connection is not None:
            worker.connection.close()
        if worker.lifeline is not None:
            os.close(worker.lifeline)
        worker.process = worker.connection = worker.lifeline = worker.told = None
        return code


def _search_path(entries: Iterable[str]) -> list[str]:
    """This process's module search path, so that a worker finds the same environments."""
    return [os.path.abspath(entry or os.curdir) for entry in entries]
