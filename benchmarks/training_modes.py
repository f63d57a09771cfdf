"""Whole trainings in every mode: speed, lags and learning curves, with equal learners and with a slowed one.

Each is a real ``headrace train`` with two learners and two samplers. The slowed learner is a real process
that is stopped four fifths of the time.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.headrace_run import ROOT, command, environment
from benchmarks.slowing import Slowed
from headrace.local.aggregates import quantile_of
from headrace.local.row import read_rows
from headrace.local.scrape import Samples, fetch
from headrace.registry import ServiceRecord, read_records

MODES = ("sync", "soft_sync", "async", "all_reduce")
PRESETS = ("cartpole-impala", "cartpole-ppo")
SHARE = 0.2
_SLOW_LEARNER = "learner-1"
_POLL_S = 0.25
_SKIP_SHARE = 0.2  # of the environment steps, before rates are taken
_POINTS = 80  # of a curve
_END_S = 120.0  # that a run may take beyond its own limit, to start and to save
_LAG_BUCKET = "headrace_paramserver_gradient_lag_bucket"
_OUTCOMES = "headrace_paramserver_gradients_total"


@dataclass(frozen=True, slots=True)
class Trained:
    """One run.

    Lags as (p50, p95, max), in versions; None: there were none. ``outcomes`` of contributions. ``curve``:
    environment steps, seconds since the first of them was trained on, mean return of the last 100 episodes.
    ``average`` is the mean return over the run, by environment steps.
    """

    preset: str
    mode: str
    slowed: bool
    seed: int
    env_steps: int
    updates: int
    seconds: float
    env_steps_per_s: float
    updates_per_s: float
    policy_lag: list[float | None]
    gradient_lag: list[float | None]
    outcomes: dict[str, float]
    final: float | None
    average: float | None
    load: float
    balanced: bool
    curve: list[tuple[int, float, float]]


def overrides(preset: str, mode: str, seed: int, env_steps: int, wall_s: float) -> list[str]:
    """The preset with two learners in ``mode``; it ends by steps alone, or by time."""
    lag = ["sync.max_policy_lag=2"] if preset == "cartpole-ppo" and mode in ("soft_sync", "async") else []
    return [
        f"run.seed={seed}",
        f"run.stop.env_steps={env_steps}",
        "run.stop.return=",
        f"run.stop.wall_s={wall_s}",
        "learner.count=2",
        "sampler.count=2",
        f"sync.mode={mode}",
        *lag,
        "evaluation.enabled=false",
        "metrics.tensorboard=false",
        "metrics.interval_s=0.25",
    ]


def train(preset: str, mode: str, slowed: bool, seed: int, env_steps: int, wall_s: float) -> Trained:
    """One run from start to end. RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, log = Path(scratch) / "run", Path(scratch) / "log"
        arguments = overrides(preset, mode, seed, env_steps, wall_s)
        with log.open("w") as output:
            process = subprocess.Popen(
                command(ROOT / "configs" / f"{preset}.yaml", folder, *arguments, "--quiet"),
                env=environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            seen = _follow(process, folder, slowed, time.monotonic() + wall_s + _END_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode:
            raise RuntimeError(f"{preset}, {mode} failed:\n{log.read_text('utf-8', 'replace')}")
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        return _outcome(preset, mode, slowed, seed, summary, read_rows(folder / "metrics.jsonl"), seen)


def _follow(process: subprocess.Popen[bytes], folder: Path, slowed: bool, deadline: float) -> Samples:
    """Wait for the end of a run, slow its second learner on the way; the paramserver's last metrics."""
    seen = Samples({})
    slowing: int | None = None
    with ExitStack() as stack:
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            records = {record.name: record for record in read_records(folder)}
            seen = _scraped(records.get("paramserver-0")) or seen
            slow = records.get(_SLOW_LEARNER)
            if slowed and slow is not None and slow.pid != slowing:
                slowing = slow.pid
                stack.enter_context(Slowed(slow.pid, SHARE))
    return seen


def _scraped(record: ServiceRecord | None) -> Samples | None:
    return None if record is None else fetch("127.0.0.1", record.metrics_port)


def _outcome(
    preset: str,
    mode: str,
    slowed: bool,
    seed: int,
    summary: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    seen: Samples,
) -> Trained:
    curve = curve_of(rows)
    begin, end = _span(rows)
    seconds = end["wall_s"] - begin["wall_s"]
    lag = summary["policy_lag"]
    return Trained(
        preset=preset,
        mode=mode,
        slowed=slowed,
        seed=seed,
        env_steps=summary["env_steps"],
        updates=summary["updates"],
        seconds=seconds,
        env_steps_per_s=(end["env_steps"] - begin["env_steps"]) / seconds,
        updates_per_s=(end["updates"] - begin["updates"]) / seconds,
        policy_lag=[lag["p50"], lag["p95"], lag["max"]],
        gradient_lag=[quantile_of(_buckets(seen), share) for share in (0.5, 0.95, 1.0)],
        outcomes=seen.by_label(_OUTCOMES, "outcome"),
        final=curve[-1][2] if curve else None,
        average=_average(curve),
        load=os.getloadavg()[0],
        balanced=summary["ledger"]["balanced"],
        curve=_thinned(curve),
    )


def curve_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float, float]]:
    """Environment steps, seconds since training began, return; a point for each row with something new."""
    curve: list[tuple[int, float, float]] = []
    began: float | None = None
    for row in rows:
        if not row["env_steps"]:
            continue
        began = row["wall_s"] if began is None else began
        new = not curve or row["env_steps"] > curve[-1][0]
        if new and row["return_mean"] is not None:
            curve.append((row["env_steps"], row["wall_s"] - began, row["return_mean"]))
    return curve


def _span(rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The first row past ``_SKIP_SHARE`` of the steps, and the first with all of them."""
    last = rows[-1]["env_steps"]
    begin = next(row for row in rows if row["env_steps"] >= _SKIP_SHARE * last)
    end = next(row for row in rows if row["env_steps"] >= last)
    if end["wall_s"] <= begin["wall_s"]:
        raise RuntimeError("the run was too short to measure")
    return begin, end


def _average(curve: Sequence[tuple[int, float, float]]) -> float | None:
    """Mean of the return over environment steps, by trapezoids."""
    if len(curve) < 2:
        return curve[0][2] if curve else None
    area = sum((after[0] - before[0]) * (after[2] + before[2]) / 2.0 for before, after in pairwise(curve))
    return area / (curve[-1][0] - curve[0][0])


def _thinned(curve: Sequence[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    step = max(1, len(curve) // _POINTS)
    return [*curve[:-1:step], *curve[-1:]]


def _buckets(samples: Samples) -> dict[float, float]:
    """Contributions by upper bound of their lag, made from the cumulative buckets."""
    counts: dict[float, float] = {}
    below = 0.0
    for bound, count in sorted((float(le), n) for le, n in samples.by_label(_LAG_BUCKET, "le").items()):
        if math.isfinite(bound):
            counts[bound] = count - below
            below = count
    return counts


def measure_modes(
    *,
    presets: Sequence[str],
    modes: Sequence[str],
    seeds: Sequence[int],
    env_steps: int,
    wall_s: float,
    slowed: Sequence[bool],
) -> list[Trained]:
    """Every preset in every mode, the modes in turns."""
    return [
        train(preset, mode, slow, seed, env_steps, wall_s)
        for preset in presets
        for seed in seeds
        for slow in slowed
        for mode in modes
    ]


def show_modes(found: Sequence[Trained]) -> None:
    """Print a line a run, or the means over the seeds."""
    print(
        f"modes: 2 learners, 2 samplers\n{'preset':16} {'mode':10} {'learners':10} {'steps/s':>8} "
        f"{'updates/s':>9} {'policy lag':>12} {'gradient lag':>12} {'end':>5} {'mean':>5} "
        f"{'load':>5}  outcomes"
    )
    for preset, mode, slowed in dict.fromkeys((one.preset, one.mode, one.slowed) for one in found):
        same = [one for one in found if (one.preset, one.mode, one.slowed) == (preset, mode, slowed)]
        print(
            f"{preset:16} {mode:10} {'one slowed' if slowed else 'equal':10} "
            f"{fmean(one.env_steps_per_s for one in same):8,.0f} "
            f"{fmean(one.updates_per_s for one in same):9.1f} {_lags(same[0].policy_lag):>12} "
            f"{_lags(same[0].gradient_lag):>12} {fmean(one.final or 0.0 for one in same):5.0f} "
            f"{fmean(one.average or 0.0 for one in same):5.0f} {fmean(one.load for one in same):5.1f}  "
            f"{ {name: int(count) for name, count in same[0].outcomes.items()} }"
        )


def _lags(lags: Sequence[float | None]) -> str:
    return "/".join("-" if lag is None else f"{lag:.0f}" for lag in lags)
