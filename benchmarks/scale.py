"""Whether samplers of a waiting environment add up: steps per second against their number.

    python -P -m benchmarks.scale [--samplers 1,2,4,8,16] [--step-ms 5] [--updates 40]

``SlowEnv`` waits in each step, as an environment bound by input and output does, so the processor is
mostly idle and n samplers should make n times the steps of one. Each run is a real ``headrace train``;
its rate is taken between one fifth of the run and its end, so start-up is left out. A batch has two
fragments of every sampler, so that each has the same share of every update.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.headrace_run import ROOT, command, environment

FRAGMENT_LENGTH = 32
SKIP_SHARE = 0.2


def document(samplers: int, step_s: float, updates: int) -> dict[str, Any]:
    """One lane a sampler: what it can make at most is 1 / step_s steps per second."""
    batch = 2 * samplers * FRAGMENT_LENGTH
    return {
        "run": {"stop": {"updates": updates}},
        "environment": {"id": "environments:SlowEnv", "kwargs": {"step_s": step_s}, "lanes": 1},
        "policy": {"hidden": [16]},
        "algorithm": {"name": "ppo", "batch_steps": batch, "minibatch_size": batch, "epochs": 1},
        "sampler": {"count": samplers, "fragment_length": FRAGMENT_LENGTH},
        "sync": {"max_policy_lag": 2},
        "evaluation": {"enabled": False},
        "metrics": {"tensorboard": False, "interval_s": 0.25},
    }


def steps_per_s(samplers: int, step_s: float, updates: int) -> float:
    """Rate of one run."""
    with tempfile.TemporaryDirectory() as place:
        config, folder = Path(place) / "slow.yaml", Path(place) / "run"
        config.write_text(yaml.safe_dump(document(samplers, step_s, updates)), "utf-8")
        subprocess.run(
            command(config, folder, "--quiet"),
            env=environment(ROOT / "tests" / "support"),
            check=True,
            capture_output=True,
        )
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return rate_of([(row["wall_s"], row["env_steps"]) for row in rows])


def rate_of(points: Sequence[tuple[float, int]]) -> float:
    """Steps per second between the first point past ``SKIP_SHARE`` of the steps and the first at the end."""
    last = points[-1][1]
    begin = next(point for point in points if point[1] >= SKIP_SHARE * last)
    end = next(point for point in points if point[1] >= last)
    return (end[1] - begin[1]) / (end[0] - begin[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samplers", default="1,2,4,8,16")
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    counts = [int(text) for text in arguments.samplers.split(",")]
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(arguments.rounds):
        for count in counts:
            rates[count].append(steps_per_s(count, arguments.step_ms / 1000.0, arguments.updates))
    one = median(rates[counts[0]]) / counts[0]
    results = []
    for count in counts:
        rate = median(rates[count])
        results.append({"samplers": count, "steps_per_s": rate, "of_proportional": rate / (one * count)})
        print(f"{count:3} samplers {rate:9,.0f} steps/s   {rate / (one * count):6.1%} of proportional")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), "utf-8")


if __name__ == "__main__":
    main()
