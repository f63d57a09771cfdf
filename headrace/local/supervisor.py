"""Keeps the processes of a run alive: notices what died, says why, starts it again or gives it up.

Single-threaded: everything happens in :meth:`Supervisor.poll` and :meth:`Supervisor.stop`, called
from the main thread.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from headrace.config.sections import RestartConfig
from headrace.events import EventLog
from headrace.local.process import ProcessEnd, ProcessSpec, kill_group, last_words, spawn
from headrace.local.restarts import RestartBudget
from headrace.rpc.entry import EXIT_CONFIGURATION, EXIT_ENVIRONMENT, EXIT_FAILED

_POLL_S = 0.05
_KILL_WAIT_S = 5.0
# A process that leaves in order has often just heard that the run is over, before the launcher did.
# So it is left alone for a moment, and before it is started again somebody is asked (``is_over``).
_RESTART_AFTER_EXIT_0_S = 1.0
# A process that fails by itself within so many seconds, so many times in a row, has a fault that another
# start won't mend. Being killed from outside doesn't count.
_YOUNG_S = 30.0
_MAX_FAILED_STARTS = 5


@dataclass(slots=True)
class _Managed:
    """One process through all its lives."""

    spec: ProcessSpec
    budget: RestartBudget
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    restart_at: float | None = None
    restarts: int = 0
    failed_starts: int = 0
    given_up: ProcessEnd | None = None
    last_end: ProcessEnd | None = None
    stopping: bool = False


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What is to be seen of one process. ``pid`` is None while it isn't running."""

    name: str
    service: str
    pid: int | None
    restarts: int
    given_up: bool


@dataclass(slots=True)
class Supervisor:
    """Owns all processes of a run. ``clock`` is monotonic seconds; ``start_process`` starts one."""

    limits: RestartConfig
    events: EventLog
    clock: Callable[[], float] = time.monotonic
    start_process: Callable[[ProcessSpec], subprocess.Popen[bytes]] = spawn
    final_exit_codes: frozenset[int] = frozenset({EXIT_CONFIGURATION, EXIT_ENVIRONMENT})
    """Exit codes after which a restart can't help."""
    tell: Callable[[str], None] = lambda _sentence: None
    """Told of every death, in a sentence for people."""
    ending: bool = False
    """The run is over: who leaves in order isn't started again; who dies still is, until it is stopped."""
    is_over: Callable[[], bool] = lambda: False
    """Asked before a process that left in order is started again: it may have heard of the end first."""
    _managed: dict[str, _Managed] = field(default_factory=dict)

    def start(self, spec: ProcessSpec) -> None:
        """Start one more process."""
        managed = _Managed(spec, RestartBudget(self.limits), started_at=self.clock())
        managed.process = self.start_process(spec)
        self._managed[spec.name] = managed
        self.events.emit("start", process=spec.name, pid=managed.process.pid)

    def poll(self) -> None:
        """Reap what died, start again what is due. Never blocks."""
        for managed in self._managed.values():
            if managed.process is not None and (code := managed.process.poll()) is not None:
                self._bury(managed, managed.process, code)
            if managed.restart_at is not None and self.clock() >= managed.restart_at:
                self._restart(managed)

    def statuses(self) -> list[ProcessStatus]:
        """All processes, in the order they were started."""
        return [
            ProcessStatus(
                name=managed.spec.name,
                service=managed.spec.service,
                pid=None if managed.process is None else managed.process.pid,
                restarts=managed.restarts,
                given_up=managed.given_up is not None,
            )
            for managed in self._managed.values()
        ]

    def restarts(self) -> dict[str, int]:
        """Restarts so far by service; every service is there."""
        counts: dict[str, int] = {}
        for managed in self._managed.values():
            counts[managed.spec.service] = counts.get(managed.spec.service, 0) + managed.restarts
        return counts

    def given_up(self, service: str) -> list[ProcessEnd]:
        """How those processes of a service ended that will not be started again."""
        return [
            managed.given_up
            for managed in self._managed.values()
            if managed.spec.service == service and managed.given_up is not None
        ]

    def last_end(self, service: str) -> ProcessEnd | None:
        """How a process of a service ended last; None if none has."""
        ends = [managed.last_end for managed in self._managed.values() if managed.spec.service == service]
        return next((end for end in ends if end is not None), None)

    def alive(self, service: str) -> bool:
        """Whether any process of a service runs or will run again."""
        return any(
            managed.given_up is None and not managed.stopping
            for managed in self._managed.values()
            if managed.spec.service == service
        )

    def stop(
        self, services: Iterable[str], *, grace_s: float, hurry: Callable[[], bool], patience_s: float = 0.0
    ) -> list[str]:
        """SIGTERM all processes of ``services`` and wait; the others are kept alive meanwhile.

        They get ``patience_s`` seconds to leave by themselves before the signal. ``grace_s`` seconds
        after it, or as soon as ``hurry()`` is true, what is left gets SIGKILL.
        Returns the names of those that had to be killed.
        """
        wanted = set(services)
        leaving = [managed for managed in self._managed.values() if managed.spec.service in wanted]
        for managed in leaving:
            managed.stopping, managed.restart_at = True, None
        self._wait_for(leaving, patience_s, hurry)
        for managed in leaving:
            if managed.process is not None:
                managed.process.send_signal(signal.SIGTERM)
        self._wait_for(leaving, grace_s, hurry)
        return [managed.spec.name for managed in leaving if self._kill(managed)]

    def kill_all(self) -> None:
        """SIGKILL everything at once; nothing is started again."""
        for managed in self._managed.values():
            managed.stopping, managed.restart_at = True, None
            self._kill(managed)

    def _wait_for(self, leaving: list[_Managed], timeout_s: float, hurry: Callable[[], bool]) -> None:
        deadline = self.clock() + timeout_s
        self.poll()
        while any(managed.process for managed in leaving) and self.clock() < deadline and not hurry():
            time.sleep(_POLL_S)
            self.poll()

    def _kill(self, managed: _Managed) -> bool:
        if managed.process is None:
            return False
        kill_group(managed.process)
        try:
            managed.process.wait(_KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            self.events.emit("unkillable", process=managed.spec.name, pid=managed.process.pid)
        managed.process = None
        managed.last_end = ProcessEnd(managed.spec.name, -signal.SIGKILL, "")
        self.events.emit("killed", process=managed.spec.name, reason="it did not leave in time")
        return True

    def _bury(self, managed: _Managed, process: subprocess.Popen[bytes], code: int) -> None:
        kill_group(process)  # environment workers it left behind
        managed.process = None
        end = managed.last_end = ProcessEnd(managed.spec.name, code, last_words(managed.spec.log_path))
        if managed.stopping or (self.ending and code == 0):
            if code != 0:
                self.events.emit("exit", process=managed.spec.name, reason=end.reason)
            return
        self._plan(managed, end)

    def _plan(self, managed: _Managed, end: ProcessEnd) -> None:
        """Decide whether and when a process that has ended is started again."""
        final = self._final(managed, end.returncode)
        delay = None if final else managed.budget.record_death(self.clock())
        if delay is None:
            end = managed.given_up = replace(end, final=f"it is given up: {final or managed.budget.spent}")
            self.events.emit("given_up", process=managed.spec.name, reason=end.reason)
            self.tell(end.reason)
            return
        if end.returncode == 0:
            managed.restart_at = self.clock() + max(delay, _RESTART_AFTER_EXIT_0_S)
            return  # told when it turns out that the run is not over
        managed.restart_at = self.clock() + delay
        self._tell_death(end, delay)

    def _tell_death(self, end: ProcessEnd, delay: float) -> None:
        self.events.emit("death", process=end.name, reason=end.unasked_reason, restart_in_s=delay)
        self.tell(f"{end.unasked_reason}; starting it again" + (f" in {delay:.1f} s" if delay else ""))

    def _final(self, managed: _Managed, code: int) -> str:
        """Why another start would not help, whatever the budget; empty if it may."""
        if code > 0:
            young = self.clock() - managed.started_at < _YOUNG_S
            managed.failed_starts = managed.failed_starts + 1 if young else 0
        if code in self.final_exit_codes:
            return "starting it again can't help"
        if managed.failed_starts >= _MAX_FAILED_STARTS:
            return f"{managed.failed_starts} times in a row it failed within {_YOUNG_S:.0f} s of its start"
        return ""

    def _restart(self, managed: _Managed) -> None:
        managed.restart_at = None
        end = managed.last_end
        if end is not None and end.returncode == 0:
            if self.ending or self.is_over():
                return
            self._tell_death(end, 0.0)
        managed.started_at = self.clock()
        try:
            managed.process = self.start_process(managed.spec)
        except OSError as error:  # e.g. no room for its log, no memory: as good as a start that failed
            managed.last_end = ProcessEnd(managed.spec.name, EXIT_FAILED, f"it could not be started: {error}")
            self._plan(managed, managed.last_end)
            return
        managed.restarts += 1
        self.events.emit(
            "restart", process=managed.spec.name, pid=managed.process.pid, number=managed.restarts
        )
