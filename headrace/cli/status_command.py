"""``headrace status``: a run as its paramserver sees it, from a pod or through a port-forward."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from headrace.clients.run import RunClient
from headrace.errors import ConfigurationError, UnavailableError
from headrace.rpc.credentials import Credentials
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import split_address
from headrace.types import LedgerGlance, RunView

ADDRESS_VARIABLE = "HEADRACE_PARAMSERVER"
DEFAULT_ADDRESS = "127.0.0.1:7000"
_EXIT_FAILED = 1
_EXIT_UNBALANCED = 3
_TIMEOUT_S = 5.0
_WIDE = 200  # columns of what goes to a file, a pipe or `kubectl exec`


def run_status(
    address: str | None,
    *,
    tls: Path | None = None,
    token_file: Path | None = None,
    as_json: bool,
    watch_s: float | None,
) -> int:
    """Print the run, again and again every ``watch_s`` seconds if that is given. Returns the exit code.

    0: all is well; 1: the run has failed; 3: its ledger doesn't balance. UnavailableError: nobody answers.
    """
    address = address or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
    split_address(address, "--address")
    credentials = Credentials.of_environment(os.environ, tls=tls, token_file=token_file)
    handshake = Handshake(run_id="", config_digest="", peer="headrace status")
    client = RunClient(address, handshake, credentials=credentials)
    try:
        if watch_s is not None:
            _watch(client, address, watch_s)
        view, ledger = _ask(client, address)
    finally:
        client.close()
    if as_json:
        typer.echo(json.dumps(to_json(view, ledger), indent=1))
    elif watch_s is None:
        Console(width=None if sys.stdout.isatty() else _WIDE).print(picture(view, ledger))
    if view.status.phase == "failed":
        return _EXIT_FAILED
    return 0 if ledger.balanced else _EXIT_UNBALANCED


def to_json(view: RunView, ledger: LedgerGlance) -> dict[str, Any]:
    """Everything that is known, as the ``--json`` option prints it."""
    report, best = view.report, view.best
    return {
        "phase": view.status.phase,
        "reason": view.status.reason,
        "version": None if view.status.version is None else str(view.status.version),
        "env_steps": 0 if report is None else report.env_steps,
        "updates": 0 if report is None else report.updates,
        "episodes": 0 if report is None else report.episodes,
        "return_mean": None if report is None else report.episode_return_mean,
        "best_evaluation": None if best is None else best.return_mean,
        "checkpoint_problem": view.checkpoint_problem,
        "ledger": asdict(ledger),
    }


def _ask(client: RunClient, address: str) -> tuple[RunView, LedgerGlance]:
    try:
        return client.state(timeout_s=_TIMEOUT_S), client.ledger(timeout_s=_TIMEOUT_S)
    except UnavailableError as error:
        raise UnavailableError(
            f"no paramserver answers at {address} ({error}). On a cluster: `kubectl port-forward "
            "service/paramserver 7000`, or `kubectl exec paramserver-0 -- headrace status`"
        ) from error


def _watch(client: RunClient, address: str, interval_s: float) -> None:
    """Show it until the run has ended, or until Ctrl-C."""
    if interval_s <= 0:
        raise ConfigurationError([f"--watch: must be above 0 seconds, not {interval_s:g}."])
    try:
        with Live(console=Console(), auto_refresh=False) as live:
            while True:
                view, ledger = _ask(client, address)
                live.update(picture(view, ledger), refresh=True)
                if view.status.ended:
                    return
                time.sleep(interval_s)
    except KeyboardInterrupt:
        return


def picture(view: RunView, ledger: LedgerGlance) -> Group:
    """The run for people: facts, then a table of its samplers."""
    return Group(_facts(view, ledger), *([_members(ledger)] if ledger.members else []))


def _facts(view: RunView, ledger: LedgerGlance) -> Table:
    table = Table.grid(padding=(0, 2))
    report, best = view.report, view.best
    phase = view.status.phase + (f": {view.status.reason}" if view.status.reason else "")
    rows = [("run", phase), ("version", str(view.status.version or "none yet"))]
    if report is not None:
        rows.append(("trained on", f"{report.env_steps:,} environment steps, {report.updates:,} updates"))
        mean = report.episode_return_mean
        rows.append(("return", "no episode yet" if mean is None else f"{mean:.4g} in training"))
    if best is not None:
        rows.append(("best evaluation", f"{best.return_mean:.4g} (version {best.version})"))
    if view.checkpoint_problem:
        rows.append(("checkpoints", f"can't be written: {view.checkpoint_problem}"))
    rows.append(("ledger", _sums(ledger)))
    rows += [("", problem) for problem in ledger.problems]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _sums(ledger: LedgerGlance) -> str:
    parts = [f"{ledger.produced:,} produced", f"{ledger.trained:,} trained"]
    held = (("stored", ledger.stored), ("evicted", ledger.evicted))
    parts += [f"{count:,} {name}" for name, count in held if count]
    parts += [f"{count:,} dropped ({reason})" for reason, count in _ranked(ledger.dropped)]
    parts += [f"{count:,} lost ({cause})" for cause, count in _ranked(ledger.lost)]
    parts.append(f"{ledger.in_flight:,} in flight")
    return ", ".join(parts) + ("; balanced" if ledger.balanced else "; DOES NOT BALANCE")


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def _members(ledger: LedgerGlance) -> Table:
    table = Table(title=f"{len(ledger.members)} samplers", title_justify="left")
    for name in ("sampler", "pod"):
        table.add_column(name)
    for name in ("incarnation", "learner", "steps", "silent, s"):
        table.add_column(name, justify="right")
    for member in ledger.members:
        table.add_row(
            member.id,
            member.name,
            str(member.incarnation),
            str(member.learner),
            f"{member.produced:,}",
            f"{member.silent_s:.0f}",
        )
    return table
