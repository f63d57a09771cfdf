"""What a person sees while a run goes on: a live panel on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.local.row import Row
from headrace.local.supervisor import ProcessStatus

_PLAIN_INTERVAL_S = 5.0
_REFRESH_S = 0.5


class View(Protocol):
    """Something that shows a run."""

    def show(self, row: Row | None, statuses: Sequence[ProcessStatus]) -> None:
        """Called often; decides itself when to show something."""
        ...

    def say(self, text: str) -> None:
        """One sentence, at once."""
        ...

    def close(self) -> None:
        """Leave the screen as it should stay."""
        ...


class QuietView:
    """Shows nothing."""

    def show(self, row: Row | None, statuses: Sequence[ProcessStatus]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing to do."""


class PlainView:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._due = 0.0

    def show(self, row: Row | None, statuses: Sequence[ProcessStatus]) -> None:
        """A line if it is time for one."""
        if row is not None and self._clock() >= self._due:
            self._due = self._clock() + _PLAIN_INTERVAL_S
            self.say("  ".join(f"{name} {value}" for name, value in facts(row)))

    def say(self, text: str) -> None:
        """Print it."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to do."""


class LiveView:
    """A panel that is redrawn in place."""

    def __init__(self, console: Console, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._title = title
        self._clock = clock
        self._due = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, row: Row | None, statuses: Sequence[ProcessStatus]) -> None:
        """Redraw if it is time to."""
        if self._clock() >= self._due:
            self._due = self._clock() + _REFRESH_S
            self._live.update(panel(self._title, row, statuses), refresh=True)

    def say(self, text: str) -> None:
        """Print it above the panel."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the last picture on the screen."""
        self._live.stop()


def make_view(console: Console, title: str, *, quiet: bool) -> View:
    """The view that fits the place."""
    if quiet:
        return QuietView()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveView(console, title)
    return PlainView(console)


_ROUND_FACTS = (("learners", "learners"), ("local_steps", "local steps"))

_REPLAY_FACTS = (
    ("hot_fill", "hot tier"),
    ("cold_fill", "cold tier"),
    ("hot_hits", "drawn hot"),
    ("drift", "drift"),
)


def facts(row: Row) -> list[tuple[str, str]]:
    """The numbers that matter, as name and text, in order of interest."""
    replay, rounds = row.replay, row.rounds
    found: list[tuple[str, str]] = [
        ("return", _number(row.return_mean)),
        ("eval", _number(row.eval_return)),
        ("best", _number(row.best_eval)),
        ("env steps", f"{row.env_steps:,}"),
        ("steps/s", _number(row.env_steps_per_s, 0)),
        ("updates", f"{row.updates:,}"),
        ("updates/s", _number(row.updates_per_s)),
        *([] if replay else [("buffer", _percent(row.input_fill_ratio))]),
        *((name, _percent(replay[key])) for key, name in _REPLAY_FACTS if key in replay),
        ("lag", _number(row.policy_lag_mean)),
        *((name, f"{rounds[key]:.0f}") for key, name in _ROUND_FACTS if key in rounds),
        *([("contribution lag", _number(rounds["contribution_lag"]))] if rounds else []),
        *([("refused", _percent(rounds["refused"]))] if rounds.get("refused") else []),
        ("learner waits", _percent(row.wait_share)),
        ("samplers wait", _percent(row.throttled_share)),
        ("restarts", str(row.restarts)),
        ("time", f"{row.wall_s:.0f} s"),
    ]
    if row.checkpoint_problem:
        found.append(("NOT SAVED", row.checkpoint_problem))
    return found


def panel(title: str, row: Row | None, statuses: Sequence[ProcessStatus]) -> Panel:
    """The whole picture: numbers on the left, processes on the right."""
    grid = Table.grid(padding=(0, 4))
    grid.add_row(_facts_table(row), _process_table(row, statuses))
    return Panel(grid, title=title, title_align="left", expand=False)


def _facts_table(row: Row | None) -> Any:
    if row is None:
        return "starting ..."
    table = Table.grid(padding=(0, 2))
    for name, value in facts(row):
        table.add_row(Text(name, style="dim"), value)
    return table


def _process_table(row: Row | None, statuses: Sequence[ProcessStatus]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("process", "state", "restarts", "memory"):
        table.add_column(heading, justify="left" if heading in ("process", "state") else "right")
    memory = row.rss_bytes if row is not None else {}
    services: dict[str, list[ProcessStatus]] = {}
    for status in statuses:
        services.setdefault(status.service, []).append(status)
    for service, members in services.items():
        running = sum(member.pid is not None for member in members)
        name = service if len(members) == 1 else f"{service} x {len(members)}"
        state = "running" if running == len(members) else f"{running} of {len(members)} running"
        restarts = sum(member.restarts for member in members)
        table.add_row(name, state, str(restarts), f"{memory.get(service, 0) / 2**20:.0f} MiB")
    return table


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
