"""How several learners get on in each mode: rounds with a slow learner, bytes, whole trainings, staleness.

    python -P -m benchmarks.training [--parts rounds,bytes,modes,staleness] [--repeats 3] [--seeds 1,2]
        [--presets cartpole-impala,cartpole-ppo] [--quick] [--json FILE] [--plots DIR]

``rounds``: updates per second of learners that wait 100 ms instead of computing, in turns. ``bytes``: per
update and learner beside theory, and the time that aggregation takes. ``modes``: real trainings with two
learners, equal or one of them slowed 5 times. ``staleness``: returns where every gradient is so many
versions old, by what is done about it.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.training_bytes import WAYS, measure_bytes, show_bytes
from benchmarks.training_modes import MODES, PRESETS, measure_modes, show_modes
from benchmarks.training_plots import plot_modes, plot_rounds, plot_staleness
from benchmarks.training_rounds import measure_rounds, show_rounds
from benchmarks.training_staleness import LAGS, measure_staleness, show_staleness

PARTS = ("rounds", "bytes", "modes", "staleness")


def run_rounds(arguments: argparse.Namespace) -> dict[str, Any]:
    """The part of that name; what it found, as JSON."""
    quick = arguments.quick
    result = measure_rounds(
        work_s=0.1, seconds=1.0 if quick else 6.0, repeats=1 if quick else arguments.repeats
    )
    show_rounds(result)
    if arguments.plots:
        plot_rounds(result, arguments.plots)
    return asdict(result)


def run_bytes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The part of that name; what it found, as JSON."""
    quick = arguments.quick
    found, aggregations = measure_bytes(
        learners=(2,) if quick else (2, 4),
        hidden=(64,) if quick else (256, 1024),
        updates=3 if quick else 10,
        repeats=5 if quick else 100,
        ways=(WAYS[0], WAYS[-2]) if quick else WAYS,
    )
    show_bytes(found, aggregations)
    return {"traffic": [asdict(one) for one in found], "aggregation": [asdict(one) for one in aggregations]}


def run_modes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The part of that name; what it found, as JSON."""
    quick = arguments.quick
    found = measure_modes(
        presets=PRESETS[:1] if quick else arguments.presets.split(","),
        modes=("async",) if quick else MODES,
        seeds=_seeds(arguments)[:1] if quick else _seeds(arguments)[: arguments.runs],
        env_steps=5_000 if quick else arguments.env_steps,
        wall_s=8.0 if quick else 60.0,
        slowed=(True,) if quick else (False, True),
    )
    show_modes(found)
    if arguments.plots:
        plot_modes(found, arguments.plots)
    return {"runs": [asdict(one) for one in found]}


def run_staleness(arguments: argparse.Namespace) -> dict[str, Any]:
    """The part of that name; what it found, as JSON."""
    quick = arguments.quick
    found = measure_staleness(
        seeds=_seeds(arguments)[:1] if quick else _seeds(arguments),
        env_steps=2_560 if quick else 60_000,
        lags=(0, 8, None) if quick else LAGS,
    )
    show_staleness(found)
    if arguments.plots:
        plot_staleness(found, arguments.plots)
    return {"trainings": [asdict(one) for one in found]}


def _seeds(arguments: argparse.Namespace) -> list[int]:
    return [int(text) for text in arguments.seeds.split(",")]


RUN = {"rounds": run_rounds, "bytes": run_bytes, "modes": run_modes, "staleness": run_staleness}


def main() -> None:
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--repeats", type=int, default=3, help="of every case of rounds")
    parser.add_argument("--seeds", default="1,2", help="of staleness; modes takes the first --runs of them")
    parser.add_argument("--runs", type=int, default=1, help="runs of every mode")
    parser.add_argument("--env-steps", type=int, default=100_000, help="of a run of a mode")
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--quick", action="store_true", help="little of everything: only shows that it works")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plots", type=Path, metavar="DIR", help="where pictures go")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    if unknown := [part for part in parts if part not in RUN]:
        parser.error(f"--parts: there is no {', '.join(unknown)}; there are {', '.join(PARTS)}")
    results: dict[str, Any] = {}
    for part in parts:
        before = os.getloadavg()[0]
        found = RUN[part](arguments)
        results[part] = {**found, "load": [before, os.getloadavg()[0]]}
        print(f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after\n", flush=True)
        if arguments.json:  # after every part: they take minutes
            arguments.json.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
