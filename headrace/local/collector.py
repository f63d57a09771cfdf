"""Gathers what a run's services say of themselves: one row a second, and totals for the summary.

Cheap on purpose, since it shares the machine with the training: one small unary call a quarter of a
second, one scrape of each service a row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from headrace.local.aggregates import Aggregates, Mark
from headrace.local.row import Row
from headrace.local.scrape import fetch
from headrace.local.supervisor import ProcessStatus
from headrace.registry import read_records
from headrace.types import RunView


@dataclass(slots=True)
class Reached:
    """When ``run.stop.return`` was first reached."""

    env_steps: int
    wall_s: float


@dataclass(slots=True)
class Collector:
    """Watches one run. ``read_view`` asks the paramserver (None: it doesn't answer just now).

    :meth:`watch` and the properties may be used from any thread; ``_lock`` guards what they share
    with the collecting thread.
    """

    run_dir: Path
    host: str
    read_view: Callable[[], RunView | None]
    target_return: float | None
    evaluated: bool
    """Whether evaluations decide that the target is reached; else the training return does."""
    with_workers: bool
    """Whether samplers have worker processes, whose memory counts as theirs."""
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """The last row of the run's earlier starts (empty: none); counters stand there until news comes."""
    clock: Callable[[], float] = time.monotonic
    aggregates: Aggregates = field(default_factory=Aggregates)
    peak_rss_bytes: dict[str, int] = field(default_factory=dict)
    reached: Reached | None = None
    _statuses: Sequence[ProcessStatus] = ()
    _view: RunView | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _began: float = 0.0
    _before: Mark | None = None

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def wall_s(self) -> float:
        """Seconds the run has been going, over all its starts."""
        return float(self.earlier.get("wall_s") or 0.0) + self.clock() - self._began

    @property
    def view(self) -> RunView | None:
        """The newest state of the run that was heard of."""
        with self._lock:
            return self._view

    def watch(self, statuses: Sequence[ProcessStatus]) -> None:
        """Say which processes there are."""
        with self._lock:
            self._statuses = tuple(statuses)

    def poll_view(self) -> None:
        """Ask for the state of the run; an unreachable paramserver leaves the last one."""
        view = self.read_view()
        if view is None:
            return
        with self._lock:
            self._view = view
        if self.reached is None and self.target_return is not None:
            self.reached = self._reached(view, self.target_return)

    def collect(self) -> Row:
        """Scrape every service and make a row."""
        with self._lock:
            statuses = self._statuses
        ports = {record.name: record for record in read_records(self.run_dir)}
        for status in statuses:
            record = ports.get(status.name)
            if status.pid is None or record is None or record.pid != status.pid or not record.metrics_port:
                continue
            samples = fetch(self.host, record.metrics_port)
            if samples is not None:
                self.aggregates.observe(status.name, status.pid, samples, self.clock())
        self.poll_view()
        return self._row(statuses, self._measure_memory(statuses))

    def _reached(self, view: RunView, target: float) -> Reached | None:
        if self.evaluated:
            best = view.best
            return Reached(best.env_steps, self.wall_s) if best and best.return_mean >= target else None
        report = view.report
        if report is None or report.episode_return_mean is None or report.episode_return_mean < target:
            return None
        return Reached(report.env_steps, self.wall_s)

    def _measure_memory(self, statuses: Sequence[ProcessStatus]) -> dict[str, int]:
        used = {"launcher": psutil.Process().memory_info().rss}
        for status in statuses:
            if status.pid is not None:
                used[status.service] = used.get(status.service, 0) + _rss(status.pid, self.with_workers)
        for service, rss in used.items():
            self.peak_rss_bytes[service] = max(rss, self.peak_rss_bytes.get(service, 0))
        return used

    def _row(self, statuses: Sequence[ProcessStatus], rss_bytes: dict[str, int]) -> Row:
        view, totals = self.view, self.aggregates
        mark = totals.mark(self.clock())
        if view is not None and view.report is not None:
            mark = replace(mark, updates=float(view.report.updates))  # learners may share one
        before, self._before = self._before or mark, mark
        elapsed = mark.at - before.at
        report = view.report if view is not None else None
        lags = report.policy_lags if report is not None else ()
        version = view.status.version if view is not None else None
        return Row(
            time=time.time(),
            wall_s=round(self.wall_s, 3),
            phase=view.status.phase if view is not None else "starting",
            policy_version=version.number if version is not None else self._earlier_count("policy_version"),
            env_steps=report.env_steps if report is not None else self._earlier_count("env_steps"),
            updates=report.updates if report is not None else self._earlier_count("updates"),
            samples_trained=report.samples_trained
            if report is not None
            else self._earlier_count("samples_trained"),
            episodes=report.episodes if report is not None else self._earlier_count("episodes"),
            return_mean=report.episode_return_mean if report is not None else None,
            return_std=report.episode_return_std if report is not None else None,
            eval_return=totals.evaluation_return,
            best_eval=view.best.return_mean if view is not None and view.best is not None else None,
            env_steps_per_s=(mark.env_steps - before.env_steps) / elapsed if elapsed > 0 else None,
            updates_per_s=(mark.updates - before.updates) / elapsed if elapsed > 0 else None,
            input_fill_ratio=totals.fill_ratio,
            policy_lag_mean=sum(lags) / len(lags) if lags else None,
            wait_share=mark.waited.since(before.waited).ratio,
            throttled_share=mark.throttled.since(before.throttled).ratio,
            restarts=sum(status.restarts for status in statuses),
            rss_bytes=rss_bytes,
            replay=totals.replay(),
            rounds=totals.rounds,
            losses=dict(report.metrics) if report is not None else {},
            checkpoint_problem=view.checkpoint_problem if view is not None else "",
        )

    def _earlier_count(self, key: str) -> int:
        return int(self.earlier.get(key) or 0)


def _rss(pid: int, with_workers: bool) -> int:
    """Resident bytes of a process, and of its children if wanted; 0 if it is gone."""
    try:
        process = psutil.Process(pid)
        family = [process, *(process.children(recursive=True) if with_workers else ())]
    except psutil.Error:
        return 0
    total = 0
    for member in family:
        try:
            total += member.memory_info().rss
        except psutil.Error:
            continue
    return total
