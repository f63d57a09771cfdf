"""``headrace top``, ``ledger`` and ``trace``: look at a run, while it goes on or afterwards."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from headrace import quarantine, trail
from headrace.config.sections import Config
from headrace.errors import ConfigurationError, HeadraceError
from headrace.flow.ledger import Ledger
from headrace.local import attach
from headrace.local.collector import Collector
from headrace.local.launcher import state_or_none
from headrace.local.live import facts, make_view, panel
from headrace.local.row import Row, last_row
from headrace.local.run_folder import RunFolder
from headrace.local.summary import read_summary
from headrace.run_ledger import read_ledger
from headrace.types import FragmentId

_ONCE_INTERVAL_S = 1.0
_WIDE = 200  # columns of a table that goes to a file or a pipe


def run_top(run: Path, *, once: bool) -> None:
    """Show a run until it ends or Ctrl-C; a run that is over is shown as it ended."""
    folder = RunFolder(run)
    config = attach.require_run(folder)
    console = Console()
    if not attach.is_running(folder):
        _show_past(console, folder)
        return
    with attach.connect(folder, config) as client:
        collector = Collector(
            run_dir=folder.path,
            host=config.network.host,
            read_view=lambda: None if client is None else state_or_none(client),
            target_return=None,
            evaluated=config.evaluation.enabled,
            with_workers=config.environment.vectorization == "async",
            earlier=last_row(folder.metrics),
        )
        if once:
            _show_once(console, folder, config, collector)
        else:
            _show_live(console, folder, config, collector)


def run_ledger(run: Path, *, as_json: bool) -> bool:
    """Print the ledger; true if it balances."""
    folder = RunFolder(run)
    config = attach.require_run(folder)
    with attach.connect(folder, config) as client:
        view = None if client is None else state_or_none(client)
    book = read_ledger(folder.path, view, run_over=not attach.is_running(folder))
    if as_json:
        typer.echo(json.dumps(book.to_json(), indent=1))
    else:
        _print_ledger(book)
    return book.balanced


def run_trace(run: Path, fragment_id: str) -> None:
    """Print where a fragment came from and what became of it."""
    folder = RunFolder(run)
    config = attach.require_run(folder)
    try:
        wanted = FragmentId.parse(fragment_id)
    except ValueError as error:
        raise ConfigurationError([f"FRAGMENT_ID: {error}."]) from error
    entry = trail.find(folder.path, wanted)
    refused = _quarantined(folder, wanted)
    if entry is None and not refused:
        raise HeadraceError(
            f"{wanted} isn't in the trail of {run}: never settled, or older than what the trail keeps"
        )
    lines = [("fragment", str(wanted)), ("sampler", wanted.sampler.sampler_id)]
    lines += [("incarnation", str(wanted.sampler.incarnation)), ("environment", config.environment.id)]
    lines += _origin(entry) if entry is not None else []
    lines += [("quarantine", sentence) for sentence in refused]
    for name, value in lines:
        typer.echo(f"{name:>14}  {value}")


def _show_once(console: Console, folder: RunFolder, config: Config, collector: Collector) -> None:
    statuses = attach.statuses(folder)
    collector.watch(statuses)
    collector.collect()  # rates need two scrapes
    time.sleep(_ONCE_INTERVAL_S)
    row = collector.collect()
    console.print(panel(folder.path.name, row, statuses))


def _show_live(console: Console, folder: RunFolder, config: Config, collector: Collector) -> None:
    view = make_view(console, folder.path.name, quiet=False)
    try:
        while attach.is_running(folder):
            statuses = attach.statuses(folder)
            collector.watch(statuses)
            view.show(collector.collect(), statuses)
            time.sleep(config.metrics.interval_s)
    except KeyboardInterrupt:
        return
    finally:
        view.close()
    _show_past(console, folder)


def _show_past(console: Console, folder: RunFolder) -> None:
    raw, summary = last_row(folder.metrics), read_summary(folder)
    status = f"{summary['status']} ({summary['reason']})" if summary else "not running; it left no summary"
    console.print(f"{folder.path.name}: {status}", markup=False, highlight=False)
    if raw:
        for name, value in facts(Row(**raw)):
            console.print(f"{name:>14}  {value}", markup=False, highlight=False)


def _print_ledger(book: Ledger) -> None:
    table = Table(box=None, pad_edge=False)
    keys = ("produced", "trained", "stored", "evicted", "dropped", "in_flight", "lost")
    for heading in ("sampler", *keys):
        table.add_column(heading.replace("_", " "), justify="left" if heading == "sampler" else "right")
    for row in book.rows:
        table.add_row(str(row.sampler), *(_cell(getattr(row, key)) for key in keys))
    totals: Mapping[str, Any] = book.totals()
    table.add_section()
    table.add_row("total", *(_cell(totals[key]) for key in keys))
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)
    if book.sampled:
        typer.echo(f"{book.sampled:,} items drawn from replay")
    for problem in book.problems:
        typer.echo(f"does not add up: {problem}")
    typer.echo("balanced" if book.balanced else "NOT BALANCED")


def _cell(value: Any) -> str:
    """A count, or counts by reason."""
    if isinstance(value, int):
        return f"{value:,}"
    return ", ".join(f"{reason} {count:,}" for reason, count in value.items()) or "0"


def _origin(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [
        ("acted by", f"policy version {entry['policy_version']}"),
        ("config digest", str(entry["config_digest"])),
        ("transitions", f"{entry['num_transitions']} ({entry['num_steps']} steps a lane)"),
    ]
    if entry.get("dropped"):
        lines.append(("became", f"dropped: {entry['dropped']}"))
    elif entry.get("stored"):
        lines.append(("became", f"stored in the hot tier of {entry['stored']}, to be drawn from"))
    else:
        lines.append(("became", f"trained into version {entry['trained_into']}, policy lag {entry['lag']}"))
    lanes = zip(entry["lane_seed"], entry["lane_episode"], entry["lane_step"], strict=True)
    lines += [
        (f"lane {lane}", f"seed {seed}, from episode {episode} step {step}, {entry['num_steps']} steps")
        for lane, (seed, episode, step) in enumerate(lanes)
    ]
    return lines


def _quarantined(folder: RunFolder, wanted: FragmentId) -> list[str]:
    """What lies in quarantine of this fragment, as a sentence each."""
    found = []
    for path in sorted((folder.path / quarantine.FOLDER).glob("*.json")):
        try:
            sample = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        origin = sample.get("provenance", {})
        if origin.get("fragment") == str(wanted):
            found.append(f"{path.name}: {sample.get('reason')}: {sample.get('detail')}")
    return found
