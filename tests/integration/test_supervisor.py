"""The supervisor with real child processes: restarts, caps, reasons, drains, and no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headrace.config.sections import RestartConfig
from headrace.events import EventLog, read_events
from headrace.local.process import ProcessSpec, last_words
from headrace.local.supervisor import Supervisor

_DEADLINE_S = 60.0
# Ready once SIGTERM is handled: leaves in order, and says so.
_POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
while True: time.sleep(0.05)
"""
_STUBBORN = _POLITE.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")


def _wait_until(condition: Callable[[], bool], supervisor: Supervisor | None = None) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        if supervisor is not None:
            supervisor.poll()
        time.sleep(0.02)


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervisor]]:
    made = []

    def make(**limits: float) -> Supervisor:
        values = {"max_restarts": 3, "window_s": 300.0, "backoff_s": 0.0, "max_backoff_s": 0.01, **limits}
        supervisor = Supervisor(RestartConfig.model_validate(values), EventLog(tmp_path, "launcher"))
        made.append(supervisor)
        return supervisor

    yield make
    for supervisor in made:
        supervisor.kill_all()


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., ProcessSpec]:
    def spec(code: str, service: str = "sampler", index: int = 0) -> ProcessSpec:
        log = tmp_path / "logs" / f"{service}-{index}.log"
        return ProcessSpec(service, index, (sys.executable, "-c", code), {}, log)

    return spec


def _pid(supervisor: Supervisor, name: str = "sampler-0") -> int | None:
    return next(status.pid for status in supervisor.statuses() if status.name == name)


def test_a_killed_process_is_started_again_with_the_reason(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec], tmp_path: Path
) -> None:
    supervisor = supervise()
    supervisor.start(python(_POLITE))
    first = _pid(supervisor)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    _wait_until(lambda: _pid(supervisor) not in (first, None), supervisor)
    assert supervisor.restarts() == {"sampler": 1}
    (death,) = [event for event in read_events(tmp_path) if event["kind"] == "death"]
    assert death["reason"] == "sampler-0 was killed by SIGKILL"


def test_a_process_that_keeps_dying_is_given_up_with_its_last_words(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec]
) -> None:
    supervisor = supervise(max_restarts=2)
    supervisor.start(python("raise SystemExit('the simulator is gone')"))
    _wait_until(lambda: bool(supervisor.given_up("sampler")), supervisor)
    assert supervisor.restarts() == {"sampler": 2}
    (end,) = supervisor.given_up("sampler")
    assert end.reason == (
        "sampler-0 ended with exit code 1: the simulator is gone; it is given up: it was started again "
        "2 times within 300 s (restart.max_restarts, restart.window_s)"
    )
    assert not supervisor.alive("sampler")


@pytest.mark.parametrize("code", [2, 3])
def test_exit_codes_that_another_start_cannot_help_are_final(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec], code: int
) -> None:
    supervisor = supervise()
    supervisor.start(python(f"raise SystemExit({code})"))
    _wait_until(lambda: bool(supervisor.given_up("sampler")), supervisor)
    assert supervisor.restarts() == {"sampler": 0}


def test_failing_at_the_start_again_and_again_is_given_up_before_the_budget_is_spent(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec]
) -> None:
    supervisor = supervise(max_restarts=1000)
    supervisor.start(python("import no_such_module"))
    _wait_until(lambda: bool(supervisor.given_up("sampler")), supervisor)
    assert supervisor.restarts() == {"sampler": 4}
    assert "No module named 'no_such_module'" in supervisor.given_up("sampler")[0].reason


def test_the_others_stay_alive_when_one_is_given_up(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec]
) -> None:
    supervisor = supervise()
    supervisor.start(python(_POLITE, index=0))
    supervisor.start(python("raise SystemExit(3)", index=1))
    _wait_until(lambda: bool(supervisor.given_up("sampler")), supervisor)
    assert supervisor.alive("sampler")
    assert _pid(supervisor) is not None


def test_stop_waits_for_a_process_that_leaves_in_order(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec], tmp_path: Path
) -> None:
    supervisor = supervise()
    spec = python(_POLITE)
    supervisor.start(spec)
    _wait_until(lambda: last_words(spec.log_path) == "ready", supervisor)
    assert supervisor.stop(["sampler"], grace_s=_DEADLINE_S, hurry=lambda: False) == []
    assert _pid(supervisor) is None
    assert supervisor.restarts() == {"sampler": 0}


def test_stop_kills_what_does_not_leave(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec]
) -> None:
    supervisor = supervise()
    spec = python(_STUBBORN)
    supervisor.start(spec)
    _wait_until(lambda: last_words(spec.log_path) == "ready", supervisor)
    pid = _pid(supervisor)
    assert supervisor.stop(["sampler"], grace_s=0.2, hurry=lambda: False) == ["sampler-0"]
    assert pid is not None
    assert not psutil.pid_exists(pid)


def test_hurry_cuts_the_grace_short(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec]
) -> None:
    supervisor = supervise()
    spec = python(_STUBBORN)
    supervisor.start(spec)
    _wait_until(lambda: last_words(spec.log_path) == "ready", supervisor)
    assert supervisor.stop(["sampler"], grace_s=3600.0, hurry=lambda: True) == ["sampler-0"]


def test_while_one_service_drains_the_others_are_still_restarted(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec]
) -> None:
    supervisor = supervise()
    supervisor.start(python(_STUBBORN, "sampler"))
    supervisor.start(python(_POLITE, "learner"))
    first = _pid(supervisor, "learner-0")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    supervisor.stop(
        ["sampler"], grace_s=_DEADLINE_S, hurry=lambda: _pid(supervisor, "learner-0") not in (first, None)
    )
    assert supervisor.restarts() == {"sampler": 0, "learner": 1}


def test_once_the_run_ends_who_leaves_in_order_is_not_started_again(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec]
) -> None:
    supervisor = supervise()
    supervisor.ending = True
    supervisor.start(python("pass"))
    _wait_until(lambda: _pid(supervisor) is None, supervisor)
    assert supervisor.restarts() == {"sampler": 0}
    assert supervisor.given_up("sampler") == []


@pytest.mark.parametrize("over", [True, False])
def test_who_leaves_in_order_is_started_again_with_a_word_unless_the_run_is_over(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec], over: bool, tmp_path: Path
) -> None:
    """A process may hear of the end before the launcher does."""
    told: list[str] = []
    asked: list[bool] = []
    supervisor = supervise()
    supervisor.tell = told.append
    supervisor.is_over = lambda: asked.append(over) or over  # type: ignore[func-returns-value]
    supervisor.start(python("pass"))
    _wait_until(lambda: bool(asked), supervisor)
    assert supervisor.restarts() == {"sampler": 0 if over else 1}
    if over:
        assert told == []
    else:
        (sentence,) = told
        assert sentence.startswith("sampler-0 ended with exit code 0: its environment may have ended")
        assert sentence.endswith("; starting it again")
    assert len([event for event in read_events(tmp_path) if event["kind"] == "death"]) == len(told)


def test_a_process_that_cannot_be_started_again_is_given_up_with_the_reason(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec], tmp_path: Path
) -> None:
    supervisor = supervise(max_restarts=1)
    supervisor.start(python(_POLITE))
    pid = _pid(supervisor)
    assert pid is not None
    (tmp_path / "logs").rename(tmp_path / "old")
    (tmp_path / "logs").write_text("a file where the folder should be")
    os.kill(pid, signal.SIGKILL)
    _wait_until(lambda: bool(supervisor.given_up("sampler")), supervisor)
    assert "it could not be started" in supervisor.given_up("sampler")[0].reason


def test_workers_of_a_killed_process_do_not_stay_behind(
    supervise: Callable[..., Supervisor], python: Callable[..., ProcessSpec]
) -> None:
    supervisor = supervise()
    spec = python(
        "import subprocess, sys, time\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)\n"
        "time.sleep(600)"
    )
    supervisor.start(spec)
    _wait_until(lambda: last_words(spec.log_path).isdigit(), supervisor)
    worker = int(last_words(spec.log_path))
    supervisor.kill_all()
    _wait_until(lambda: not psutil.pid_exists(worker) or psutil.Process(worker).status() == "zombie")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="tied to the parent's death on Linux only")
def test_children_die_with_a_killed_launcher(tmp_path: Path) -> None:
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\n"
            "from pathlib import Path\n"
            "from headrace.local.process import ProcessSpec, spawn\n"
            "command = (sys.executable, '-c', 'import time; time.sleep(600)')\n"
            f"spec = ProcessSpec('sampler', 0, command, {{}}, Path({str(tmp_path / 'log')!r}))\n"
            "print(spawn(spec).pid, flush=True)\n"
            "time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    assert psutil.pid_exists(child)
    launcher.kill()
    launcher.wait(_DEADLINE_S)
    launcher.stdout.close()
    _wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie")
