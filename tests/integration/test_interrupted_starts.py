"""Ctrl-C and SIGTERM before a run has begun: a word, no traceback, nothing left behind."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from local_run import TIMEOUT_S, command, environment, small_document, write_document

# Sends the command line a signal at a definite place: when it imports a module for the first time.
_SIGNAL_AT_IMPORT = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT_IMPORT"]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))
sys.meta_path.insert(0, Finder())
"""
_HANGS = """
import os, time
from pathlib import Path
Path(os.environ["MADE"]).write_text(str(os.getpid()))
time.sleep(3600)
"""


def _start(tmp_path: Path, document: dict[str, object], **variables: str) -> subprocess.Popen[str]:
    (tmp_path / "temporary").mkdir()
    surroundings = environment()
    path = f"{tmp_path / 'modules'}:{surroundings['PYTHONPATH']}"
    return subprocess.Popen(
        command("train", str(write_document(tmp_path, document)), "--run-dir", str(tmp_path / "run")),
        env={**surroundings, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "temporary"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "module", ["typer", "pydantic", "rich.console", "psutil", "headrace.local.preflight"]
)
def test_a_signal_while_it_loads_is_answered_with_a_word(
    tmp_path: Path, module: str, number: signal.Signals
) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text(_SIGNAL_AT_IMPORT)
    process = _start(tmp_path, small_document(), AT_IMPORT=module, SIGNAL=str(int(number)))
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, output
    assert output.startswith("Interrupted")
    assert "Traceback" not in output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_checks_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "hangs.py").write_text(_HANGS)
    made = tmp_path / "made"
    process = _start(tmp_path, small_document(environment={"id": "hangs:Env"}), MADE=str(made))
    try:
        while not (made.exists() and made.read_text()):
            assert process.poll() is None, process.communicate()
        process.send_signal(number)
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 1, output
    assert output.splitlines()[-1] == "Interrupted: nothing was started."
    assert "Traceback" not in output
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not psutil.pid_exists(int(made.read_text()))
    assert not (tmp_path / "run").exists()
