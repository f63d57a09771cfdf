"""What one slow sampler costs the others: their steps per second while one is slowed and while none is.

    python -P -m benchmarks.stragglers [--samplers 4] [--factor 5] [--lags 0,1,4] [--leveling off,auto]

Each run is a real ``headrace train`` with samplers whose environment waits in each step, so that they don't
compete for the processor. In turns all are equally fast, and the last one is ``--factor`` times as slow:
both in one run, so that the ratio is of the same machine in the same minute. After each change the run has
``--settle`` seconds to find its new pace, then the steps of each sampler are counted for ``--measure``
seconds. A batch has ``--each`` fragments of each sampler.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.headrace_run import ROOT, command, environment
from headrace.accounts import read_accounts
from headrace.events import read_events
from headrace.registry import read_records

_START_S = 60.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Phases:
    """How often equal and hindered follow each other in a run, and how long each takes, in seconds."""

    rounds: int
    settle_s: float
    measure_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """Steps per second of one sampler that isn't hindered, and of the hindered one; medians over rounds.

    ``ratio`` is that of the others, hindered over equal, also of the rounds' medians.
    """

    leveling: str
    max_policy_lag: int
    equal: float
    others: float
    hindered: float
    ratio: float
    quota_changes: int
    balanced: bool


def document(lag: int, leveling: str, arguments: argparse.Namespace, hindered: Path) -> dict[str, Any]:
    """One lane a sampler; ``hindered`` is the file that says which one is slow."""
    samplers, length = arguments.samplers, arguments.fragment_length
    batch = arguments.each * samplers * length
    kwargs = {
        "hindered": str(hindered),
        "factor": arguments.factor,
        "step_s": arguments.step_ms / 1000.0,
    }
    return {
        "run": {"stop": {"wall_s": 3600}},
        "environment": {"id": "environments:HinderedEnv", "kwargs": kwargs, "lanes": 1},
        "policy": {"hidden": [16]},
        "algorithm": {"name": "ppo", "batch_steps": batch, "minibatch_size": batch, "epochs": 1},
        "sampler": {"count": samplers, "fragment_length": length, "leveling": leveling},
        "sync": {"max_policy_lag": lag},
        "evaluation": {"enabled": False},
        "metrics": {"tensorboard": False},
    }


@contextmanager
def training(config: Path, folder: Path) -> Iterator[None]:
    """A run in the background from when every sampler steps; it drains in order at the end of the block."""
    process = subprocess.Popen(
        command(config, folder, "--quiet"),
        env=environment(ROOT / "tests" / "support"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def wait_for_samplers(folder: Path, samplers: int, steps: int) -> None:
    """Until each has taken so many steps. RuntimeError if that takes too long."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        counts = steps_of(folder)
        if len(counts) == samplers and min(counts.values()) >= steps:
            return
        time.sleep(_POLL_S)
    raise RuntimeError(f"{samplers} samplers did not start within {_START_S:.0f} s")


def steps_of(folder: Path) -> dict[str, int]:
    """Steps that each sampler has taken so far."""
    if not (folder / "accounts").is_dir():
        return {}
    return {account.sampler.sampler_id: account.produced for account in read_accounts(folder)}


def rates(folder: Path, seconds: float) -> dict[str, float]:
    """Steps per second of each sampler during the next ``seconds``."""
    before, began = steps_of(folder), time.monotonic()
    time.sleep(seconds)
    after, took = steps_of(folder), time.monotonic() - began
    return {name: (after[name] - before[name]) / took for name in before}


def measure(lag: int, leveling: str, arguments: argparse.Namespace, phases: Phases) -> Result:
    """One run, first equal, then hindered, ``phases.rounds`` times."""
    samplers = arguments.samplers
    equal, others, hindered_rates = [], [], []
    with tempfile.TemporaryDirectory() as place:
        config, folder, hindered = (Path(place) / name for name in ("run.yaml", "run", "hindered"))
        written = document(lag, leveling, arguments, hindered)
        config.write_text(yaml.safe_dump(written), "utf-8")
        with training(config, folder):
            wait_for_samplers(folder, samplers, 4 * arguments.fragment_length)
            pids = {record.name: record.pid for record in read_records(folder)}
            slow = f"sampler-{samplers - 1}"
            for _ in range(phases.rounds):
                hindered.unlink(missing_ok=True)
                time.sleep(phases.settle_s)
                of_all = rates(folder, phases.measure_s)
                equal.append(median(rate for name, rate in of_all.items() if name != slow))
                write_whole(hindered, str(pids[slow]))
                time.sleep(phases.settle_s)
                of_all = rates(folder, phases.measure_s)
                hindered_rates.append(of_all.pop(slow))
                others.append(median(of_all.values()))
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        changes = sum(event["kind"] == "leveling" for event in read_events(folder))
    return Result(
        leveling=leveling,
        max_policy_lag=lag,
        equal=median(equal),
        others=median(others),
        hindered=median(hindered_rates),
        ratio=median(slowed / free for slowed, free in zip(others, equal, strict=True)),
        quota_changes=changes,
        balanced=bool(summary["ledger"]["balanced"]),
    )


def write_whole(path: Path, text: str) -> None:
    """Write a file that nobody can find half-written."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, "utf-8")
    os.replace(partial, path)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samplers", type=int, default=4)
    parser.add_argument("--each", type=int, default=1)
    parser.add_argument("--factor", type=float, default=5.0)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--fragment-length", type=int, default=16)
    parser.add_argument("--lags", default="0,1,4")
    parser.add_argument("--leveling", default="off,auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--settle", type=float, default=10.0)
    parser.add_argument("--measure", type=float, default=6.0)
    parser.add_argument("--quick", action="store_true", help="one lag, one round: a minute")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    lags = [1] if arguments.quick else [int(text) for text in arguments.lags.split(",")]
    phases = Phases(1 if arguments.quick else arguments.rounds, arguments.settle, arguments.measure)
    results = []
    for lag in lags:
        for leveling in arguments.leveling.split(","):
            result = measure(lag, leveling, arguments, phases)
            results.append(asdict(result))
            print(
                f"leveling {leveling:4}  lag {lag}  each of the others {result.equal:5.0f} -> "
                f"{result.others:5.0f} steps/s ({result.ratio:5.1%}), the slow one {result.hindered:4.0f}; "
                f"{result.quota_changes} changes, ledger {'balanced' if result.balanced else 'OPEN'}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), "utf-8")


if __name__ == "__main__":
    main()
