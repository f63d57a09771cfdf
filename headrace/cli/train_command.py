"""``headrace train``: check everything, then run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace import logs
from headrace.cli.kubernetes_command import ClusterOptions, run_on_cluster
from headrace.config.digest import config_digest
from headrace.config.load import load_config
from headrace.config.sections import Config
from headrace.errors import ConfigurationError
from headrace.local.interrupts import Interrupts
from headrace.local.launcher import LocalRun
from headrace.local.live import make_view
from headrace.local.preflight import check_run
from headrace.local.run_folder import (
    RUNS,
    FolderLock,
    RunFolder,
    create,
    default_name,
    resume_problems,
    take_up,
)
from headrace.local.summary import Outcome


def run_train(
    arguments: Sequence[str],
    run_dir: Path | None,
    resume: Path | None,
    samplers: int | None,
    target: str,
    options: ClusterOptions,
    *,
    quiet: bool,
) -> int:
    """Train; returns the exit code. Raises ConfigurationError before any service is started.

    KeyboardInterrupt comes out of it only before that, too: from then on signals are counted.
    """
    console = Console(soft_wrap=True)
    config_path, overrides = _split(arguments, resume)
    if samplers is not None:
        overrides.append(f"sampler.count={samplers}")
    if target == "kubernetes":
        if config_path is None or resume is not None:
            raise ConfigurationError(["--target: kubernetes takes a CONFIG, and goes on by itself."])
        return run_on_cluster(config_path, overrides, run_dir, options, quiet=quiet)
    if target != "local" or options.given():
        wrong = (
            f"{target!r} is neither local nor kubernetes"
            if target != "local"
            else "local takes no " + (", ".join(options.given()))
        )
        raise ConfigurationError([f"--target: {wrong}."])
    now = datetime.now()
    if resume is not None:
        if run_dir is not None:
            raise ConfigurationError(["--run-dir: a resumed run stays in its own folder; leave it out."])
        folder = RunFolder(resume)
        if problems := resume_problems(folder):
            raise ConfigurationError(problems)
        config = load_config(folder.config, overrides)
        if config_path is not None and not quiet:
            console.print(f"Going on with the configuration in {folder.config}; {config_path} isn't read.")
    else:
        if config_path is None:
            raise ConfigurationError(["CONFIG: give a configuration file, or --resume RUN."])
        config = load_config(config_path, overrides)
        folder = RunFolder(run_dir if run_dir is not None else _new_folder(config, now))
    if not quiet:
        console.print(f"Checking {config.environment.id} and the configuration ...", highlight=False)
    for note in check_run(config, folder, resume=resume is not None):
        print(note, file=sys.stderr)
    return _run(config, folder, console, resume=resume is not None, now=now, quiet=quiet)


def _run(
    config: Config, folder: RunFolder, console: Console, *, resume: bool, now: datetime, quiet: bool
) -> int:
    lock = FolderLock(folder)
    with contextlib.ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            stack.callback(lock.release)
            if resume:
                take_up(folder, config)
            else:
                create(folder, config, now)
            log = stack.enter_context(logs.log_file(folder.log("launcher", 0)))
        except OSError as error:
            raise ConfigurationError([f"--run-dir: {folder.path} can't be made: {error}"]) from error
        logs.configure("launcher", 0, folder.path, config_digest(config), stream=log)
        view = make_view(console, folder.path.name, quiet=quiet)
        try:
            run = LocalRun(config=config, folder=folder, view=view, interrupts=interrupts)
            outcome, summary, unwritten = run.execute()
        finally:
            view.close()
        _tell(console, folder, outcome, summary, unwritten)
    return outcome.exit_code


def _split(arguments: Sequence[str], resume: Path | None) -> tuple[Path | None, list[str]]:
    """CONFIG comes first; with ``--resume`` it may be left out."""
    if not arguments:
        return None, []
    first, *rest = arguments
    if "=" in first and not Path(first).exists():
        if resume is None:
            raise ConfigurationError([f"CONFIG: a file comes before the overrides, not {first!r}."])
        return None, list(arguments)
    return Path(first), rest


def _new_folder(config: Config, now: datetime) -> Path:
    """A folder under ``runs`` that isn't there yet."""
    path = RUNS / default_name(config, now)
    number = 1
    while path.exists():
        number += 1
        path = RUNS / f"{default_name(config, now)}-{number}"
    return path


def _tell(
    console: Console,
    folder: RunFolder,
    outcome: Outcome,
    summary: Mapping[str, Any],
    unwritten: Mapping[str, str],
) -> None:
    """The summary for people. Of a failed run the reason is the last line."""
    returns, ledger = summary["return"], summary["ledger"]
    restarts = sum(summary["restarts"].values())
    rows = [
        ("run", str(folder.path)),
        ("status", f"{outcome.status} ({outcome.reason})"),
        ("time", f"{summary['wall_s']:.1f} s, {restarts} restarts"),
        ("env steps", f"{summary['env_steps']:,} in {summary['updates']:,} updates"),
        ("return", f"training {_number(returns['mean'])}, best evaluation {_number(returns['best_eval'])}"),
        ("ledger", "balanced" if ledger["balanced"] else "NOT BALANCED: see headrace ledger"),
    ]
    if folder.plot.exists():
        rows.append(("plot", str(folder.plot)))
    rows += [("unwritten", f"{what}: {problem}") for what, problem in unwritten.items()]
    for name, value in rows:
        console.print(f"{name:>10}  {value}", markup=False, highlight=False)
    if outcome.status == "failed":
        console.file.flush()
        print(f"The run failed: {outcome.reason}", file=sys.stderr)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f}"
