"""Whether memory stays flat: long runs on environments made to let it grow, every process watched.

    python -P -m benchmarks.soak [--minutes 20] [--environments LongTailEnv,GrowingInfoEnv] [--json FILE]

``LongTailEnv`` has one episode in fifty of 20,000 steps; the ``info`` of ``GrowingInfoEnv`` grows with every
step. Each is trained on by a ``headrace train`` of its own, all at the same time. The resident memory of
every process is read every second; the first minute is start-up and is left out; a line is fitted to the
rest. Flat means: under 1 MB/min, and the last tenth of the time under 5 % above the first, by their means.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from benchmarks.headrace_run import ROOT, command, environment
from benchmarks.processes import MB, resident_bytes, tree

ENVIRONMENTS = ("LongTailEnv", "GrowingInfoEnv")
MAX_KB_PER_MINUTE = 1000.0
MAX_GROWTH = 0.05
_INTERVAL_S = 1.0
_END_DEADLINE_S = 120.0
_LEAST_SAMPLES = 30


@dataclass(frozen=True, slots=True)
class Growth:
    """The memory of one process over time. ``start_mb`` and ``end_mb``: first and last tenth, means."""

    name: str
    minutes: float
    slope_kb_per_min: float
    start_mb: float
    end_mb: float
    peak_mb: float

    @property
    def is_flat(self) -> bool:
        """See the module's docstring."""
        return self.slope_kb_per_min < MAX_KB_PER_MINUTE and self.end_mb < self.start_mb * (1 + MAX_GROWTH)


@dataclass(slots=True)
class Soak:
    """One run that is being watched. Samples are (seconds since its start, bytes), by process."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    began: float
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def sample(self) -> None:
        """Read the memory of every process once. A process that was started again is another one."""
        for process in tree(self.process.pid):
            rss = resident_bytes(process)
            if rss:
                self.samples[_name_of(process)].append((time.monotonic() - self.began, rss))

    def growths(self, skip_s: float) -> list[Growth]:
        """Of all processes that were there long enough."""
        return [
            growth_of(name, samples)
            for name, all_samples in self.samples.items()
            if len(samples := [sample for sample in all_samples if sample[0] >= skip_s]) >= _LEAST_SAMPLES
        ]


def growth_of(name: str, samples: Sequence[tuple[float, float]]) -> Growth:
    """Fit a line to (seconds, bytes) by least squares."""
    seconds, rss = np.array(samples, np.float64).T
    slope = float(np.polyfit(seconds, rss, 1)[0])
    tenth = max(1, len(rss) // 10)
    return Growth(
        name=name,
        minutes=float(seconds[-1] - seconds[0]) / 60,
        slope_kb_per_min=slope * 60 / 1e3,
        start_mb=float(rss[:tenth].mean()) / MB,
        end_mb=float(rss[-tenth:].mean()) / MB,
        peak_mb=float(rss.max()) / MB,
    )


def _name_of(process: psutil.Process) -> str:
    """``learner 1234``; the launcher is what is no service."""
    try:
        line = process.cmdline()
    except psutil.NoSuchProcess:
        line = []
    service = next(
        (part.removeprefix("services.") for part in line if part.startswith("services.")), "launcher"
    )
    index = line[line.index("--index") + 1] if "--index" in line else "0"
    return f"{service}-{index} ({process.pid})"


def document(name: str, *, samplers: int, minutes: float) -> dict[str, Any]:
    """PPO on a case environment, as small as the example presets."""
    return {
        "run": {"seed": 1, "stop": {"wall_s": minutes * 60}},
        "environment": {"id": f"environments:{name}", "lanes": 8},
        "algorithm": {"name": "ppo", "batch_steps": 1024, "minibatch_size": 256, "epochs": 2},
        "sampler": {"count": samplers, "fragment_length": 64},
        "evaluation": {"enabled": False},
    }


def start(name: str, folder: Path, *, samplers: int, minutes: float) -> Soak:
    """Begin a run on one environment."""
    folder.mkdir(parents=True)
    config = folder / "soak.yaml"
    config.write_text(yaml.safe_dump(document(name, samplers=samplers, minutes=minutes)), "utf-8")
    run_dir = folder / "run"
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command(config, run_dir, "--quiet"),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(ROOT / "tests" / "support"),
        )
    return Soak(name, run_dir, process, time.monotonic())


def watch(soaks: Sequence[Soak], minutes: float) -> None:
    """Sample all runs until they end; ends what hasn't ended in time."""
    deadline = time.monotonic() + minutes * 60 + _END_DEADLINE_S
    while any(soak.process.poll() is None for soak in soaks) and time.monotonic() < deadline:
        for soak in soaks:
            soak.sample()
        time.sleep(_INTERVAL_S)
    for soak in soaks:
        if soak.process.poll() is None:
            soak.process.send_signal(signal.SIGTERM)
        soak.process.wait(_END_DEADLINE_S)


def report(soaks: Sequence[Soak], skip_s: float) -> dict[str, Any]:
    """Print a table; returns the figures."""
    figures: dict[str, Any] = {}
    for soak in soaks:
        summary = json.loads((soak.folder / "summary.json").read_text("utf-8"))
        growths = soak.growths(skip_s)
        print(
            f"{soak.name}: {summary['env_steps']:,} steps in {summary['updates']:,} updates, "
            f"{summary['status']}, {sum(summary['restarts'].values())} restarts"
        )
        for growth in growths:
            print(
                f"  {growth.name:24}{growth.slope_kb_per_min:>10,.0f} KB/min{growth.start_mb:>9.1f} MB to"
                f"{growth.end_mb:>8.1f} MB, peak{growth.peak_mb:>8.1f} MB over {growth.minutes:.1f} min: "
                f"{'flat' if growth.is_flat else 'NOT FLAT'}"
            )
        figures[soak.name] = {
            "summary": summary,
            "processes": [{**asdict(growth), "flat": growth.is_flat} for growth in growths],
            "samples": soak.samples,
        }
    return figures


def main() -> None:
    """Soak and report; exit code 1 if something grows."""
    parser = argparse.ArgumentParser(description="Watch the memory of long runs.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--skip-s", type=float, default=60.0, help="seconds at the start that don't count")
    parser.add_argument("--samplers", type=int, default=1)
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS), help="comma-separated")
    parser.add_argument("--json", type=Path, help="write everything there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        soaks = [
            start(name, Path(scratch) / name, samplers=options.samplers, minutes=options.minutes)
            for name in options.environments.split(",")
        ]
        watch(soaks, options.minutes)
        figures = report(soaks, options.skip_s)
    if options.json is not None:
        options.json.write_text(json.dumps(figures))
    flat = [process["flat"] for figure in figures.values() for process in figure["processes"]]
    sys.exit(0 if flat and all(flat) else 1)


if __name__ == "__main__":
    main()
