"""What people see of a run: a panel on a terminal, lines in a pipe, nothing with --quiet."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from headrace.local.live import LiveView, PlainView, QuietView, make_view
from headrace.local.row import Row
from headrace.local.supervisor import ProcessStatus

ROW = Row(
    time=0.0,
    wall_s=12.0,
    phase="running",
    policy_version=3,
    env_steps=12345,
    updates=3,
    samples_trained=49380,
    episodes=9,
    return_mean=21.25,
    return_std=1.0,
    eval_return=None,
    best_eval=None,
    env_steps_per_s=1500.0,
    updates_per_s=2.0,
    input_fill_ratio=0.5,
    policy_lag_mean=1.0,
    wait_share=0.125,
    throttled_share=None,
    restarts=1,
    rss_bytes={"sampler": 3 * 2**20},
)
STATUSES = [
    ProcessStatus("sampler-0", "sampler", 10, 1, False),
    ProcessStatus("sampler-1", "sampler", None, 0, True),
]


def _console(*, terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=120, _environ={"TERM": "xterm"}), file


def test_each_place_gets_its_view() -> None:
    console, _ = _console(terminal=True)
    view = make_view(console, "run", quiet=False)
    view.close()
    assert isinstance(view, LiveView)
    assert isinstance(make_view(_console(terminal=False)[0], "run", quiet=False), PlainView)
    assert isinstance(make_view(console, "run", quiet=True), QuietView)


def test_a_pipe_gets_a_line_now_and_then() -> None:
    console, file = _console(terminal=False)
    now = [0.0]
    view = PlainView(console, clock=lambda: now[0])
    for _ in range(50):
        view.show(ROW, STATUSES)
        now[0] += 0.2
    lines = file.getvalue().splitlines()
    assert len(lines) == 2  # 50 looks in 10 s, a line every 5 s
    assert "return 21.2  eval -  best -  env steps 12,345  steps/s 1,500" in lines[0]
    assert "learner waits 12 %  samplers wait -  restarts 1  time 12 s" in lines[0]


def test_the_panel_counts_processes_and_survives_a_sentence() -> None:
    console, file = _console(terminal=True)
    view = LiveView(console, "my-run", clock=lambda: 1.0)
    view.show(ROW, STATUSES)
    view.say("sampler-1 ended [with brackets]")
    view.close()
    shown = file.getvalue()
    for words in (
        "my-run",
        "12,345",
        "sampler x 2",
        "1 of 2 running",
        "3 MiB",
        "sampler-1 ended [with brackets]",
    ):
        assert words in shown
    assert "[dim]" not in shown


def test_a_checkpoint_that_cannot_be_written_is_seen_in_every_picture() -> None:
    row = replace(ROW, checkpoint_problem="No space left on device")
    for show in (PlainView, lambda console: LiveView(console, "run")):
        console = Console(file=io.StringIO(), force_terminal=show is not PlainView, width=120)
        view = show(console)
        view.show(row, STATUSES)
        view.close()
        assert "No space left on device" in console.file.getvalue()  # type: ignore[attr-defined]
