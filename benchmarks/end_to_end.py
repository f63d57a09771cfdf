"""Headrace against peers at the same work: environment steps/s, samples through the learner/s, time to a
return, peak memory, CPU. Every system is a fresh process each time, all of them in turn, round after round.

    python -P -m benchmarks.end_to_end --peers-python PATH [--lanes 8] [--steps 128] [--minibatch 256]
        [--epochs 4] [--rounds 3] [--total-steps 200000] [--target 475] [--systems headrace,cleanrl_style]
        [--samplers 1] [--set KEY=VALUE ...] [--json FILE]

``--peers-python`` is the Python of a virtual environment that holds peers; it may be given several times,
since not all of them agree on what they need. What is installed in none is left out, in words.
``cleanrl_style`` needs nothing but what Headrace needs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks import headrace_run
from benchmarks.peers.protocol import NOT_INSTALLED, Outcome, Work
from benchmarks.processes import MB, PeakMemory, children_cpu_s

HEADRACE = "headrace"
PEERS = ("cleanrl_style", "sb3", "sample_factory_appo", "rllib_ppo")
_TIMEOUT_S = 1800.0
_FIGURES = {
    "env_steps_per_s": ("steps/s", 0),
    "samples_per_s": ("samples/s", 0),
    "seconds_to_target": ("s to target", 2),
    "seconds_to_target_from_start": ("s, with start-up", 2),
    "startup_s": ("s start-up", 2),
    "peak_mb": ("peak MB", 0),
    "cpu_us_per_step": ("CPU us/step", 1),
    "load": ("load", 1),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one system. Without "from start" times begin when the first step was about to be taken.

    ``load``: how many processes of others were runnable meanwhile is not known; this is the machine's load
    average of one minute at the end of the run, the system's own processes included.
    """

    env_steps_per_s: float
    samples_per_s: float
    seconds_to_target: float | None
    seconds_to_target_from_start: float | None
    startup_s: float
    peak_mb: float
    cpu_us_per_step: float
    load: float
    return_mean: float | None
    notes: dict[str, Any]


def measure(system: str, work: Work, options: argparse.Namespace) -> Measurement | str:
    """Run it once; a sentence if it can't be run here."""
    if system == HEADRACE:
        return _measure_headrace(work, options)
    said = "there is no --peers-python"
    for python in [sys.executable] if system == PEERS[0] else options.peers_python:
        with tempfile.TemporaryDirectory() as scratch:
            command = [str(python), "-P", "-m", f"benchmarks.peers.{system}", "--work", work.to_json()]
            finished = _run(command, Path(scratch))
        said = (finished.output.strip().splitlines() or [""])[-1]
        if finished.returncode == 0:
            return _measurement(Outcome(**json.loads(said)), finished)
        if finished.returncode != NOT_INSTALLED:
            return f"failed with {finished.returncode}: {said}\n{finished.errors[-2000:]}"
    return said


def _measure_headrace(work: Work, options: argparse.Namespace) -> Measurement | str:
    with tempfile.TemporaryDirectory() as scratch:
        folder, config = Path(scratch) / "run", Path(scratch) / "benchmark.yaml"
        document = headrace_run.document(work, samplers=options.samplers)
        config.write_text(yaml.safe_dump(document), "utf-8")
        finished = _run(headrace_run.command(config, folder, "--quiet", *options.set), Path(scratch))
        if finished.returncode:
            return f"failed with {finished.returncode}: {finished.output[-1000:]}{finished.errors[-1000:]}"
        return _measurement(headrace_run.read_outcome(folder), finished)


@dataclass(frozen=True, slots=True)
class _Finished:
    """A process tree that has ended."""

    returncode: int
    output: str
    errors: str
    started_at: float
    peak_bytes: int
    cpu_s: float


def _run(command: list[str], folder: Path) -> _Finished:
    cpu_s, started_at = children_cpu_s(), time.time()
    with (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env={**headrace_run.environment(), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        with PeakMemory(process.pid) as memory:
            output, _ = process.communicate(timeout=_TIMEOUT_S)
        errors.seek(0)
        said = errors.read()
    cpu_s = children_cpu_s() - cpu_s
    return _Finished(process.returncode, output, said, started_at, memory.peak_bytes, cpu_s)


def _measurement(outcome: Outcome, finished: _Finished) -> Measurement:
    seconds, reached = outcome.ended_at - outcome.began_at, outcome.reached_at
    return Measurement(
        env_steps_per_s=outcome.env_steps / seconds,
        samples_per_s=outcome.samples_trained / seconds,
        seconds_to_target=None if reached is None else reached - outcome.began_at,
        seconds_to_target_from_start=None if reached is None else reached - finished.started_at,
        startup_s=outcome.began_at - finished.started_at,
        peak_mb=finished.peak_bytes / MB,
        cpu_us_per_step=1e6 * finished.cpu_s / outcome.env_steps,
        load=os.getloadavg()[0],
        return_mean=outcome.return_mean,
        notes=outcome.notes,
    )


def run_rounds(work: Work, options: argparse.Namespace) -> dict[str, list[Measurement]]:
    """All systems in turn; each round has a seed of its own, the same for all."""
    results: dict[str, list[Measurement]] = {system: [] for system in options.systems}
    for index in range(options.rounds):
        for system in list(results):
            seeded = Work(**{**asdict(work), "seed": work.seed + index})
            measured = measure(system, seeded, options)
            if isinstance(measured, str):
                print(f"{system} is left out: {measured}", flush=True)
                del results[system]
                continue
            results[system].append(measured)
            print(f"round {index + 1}  {system:20} {_line(measured)}", flush=True)
    return results


def summarize(results: dict[str, list[Measurement]]) -> dict[str, Any]:
    """Medians and spreads, and Headrace's ratio to each peer: the median of the rounds' ratios."""
    systems: dict[str, Any] = {}
    for system, runs in results.items():
        systems[system] = {name: _spread([getattr(run, name) for run in runs]) for name in _FIGURES}
        systems[system]["solved"] = sum(run.seconds_to_target is not None for run in runs)
        systems[system]["runs"] = [asdict(run) for run in runs]
    ratios = {}
    for system in results:
        if system != HEADRACE and HEADRACE in results:
            pairs = zip(results[HEADRACE], results[system], strict=True)
            values = [ours.env_steps_per_s / theirs.env_steps_per_s for ours, theirs in pairs]
            ratios[f"headrace / {system}, steps/s"] = _spread(values)
    return {"systems": systems, "ratios": ratios}


def _spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Over the runs that have a value."""
    known = [value for value in values if value is not None]
    return {"median": median(known), "min": min(known), "max": max(known)} if known else None


def _line(run: Measurement) -> str:
    cells = []
    for name, (label, digits) in _FIGURES.items():
        value = getattr(run, name)
        if value is not None:
            cells.append(f"{value:,.{digits}f} {label}")
    shares = [f"{name} {run.notes[name]}" for name in headrace_run.SHARES if name in run.notes]
    return ", ".join([*cells, f"return {run.return_mean or 0:.0f}", *shares])


def print_summary(summary: dict[str, Any]) -> None:
    """For people."""
    print()
    for system, figures in summary["systems"].items():
        print(f"{system}: target reached in {figures['solved']} of {len(figures['runs'])} runs")
        for name, (label, digits) in _FIGURES.items():
            if (spread := figures[name]) is not None:
                low, high = f"{spread['min']:,.{digits}f}", f"{spread['max']:,.{digits}f}"
                print(f"  {label:20}{spread['median']:>12,.{digits}f}  ({low} to {high})")
    for name, spread in summary["ratios"].items():
        print(f"{name:50}{spread['median']:6.2f}  ({spread['min']:.2f} to {spread['max']:.2f})")


def parse(argv: Sequence[str] | None = None) -> tuple[Work, argparse.Namespace]:
    """The work and how it is measured."""
    work = Work()
    parser = argparse.ArgumentParser(description="Measure Headrace and peers end to end.")
    parser.add_argument(
        "--peers-python",
        type=Path,
        action="append",
        default=[],
        help="Python of a virtual environment with peers; may be repeated",
    )
    parser.add_argument("--systems", default=",".join([HEADRACE, *PEERS]), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environment", default=work.environment)
    parser.add_argument("--lanes", type=int, default=work.lanes)
    parser.add_argument("--steps", type=int, default=work.steps, help="per lane and batch")
    parser.add_argument("--minibatch", type=int, default=work.minibatch)
    parser.add_argument("--epochs", type=int, default=work.epochs)
    parser.add_argument("--total-steps", type=int, default=work.total_steps)
    parser.add_argument("--target", type=float, help="end once the mean training return is this; else never")
    parser.add_argument("--learning-rate", type=float, default=work.learning_rate)
    parser.add_argument("--samplers", type=int, default=1, help="sampler processes of Headrace")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of Headrace's configuration")
    parser.add_argument("--json", type=Path, help="write everything there")
    options = parser.parse_args(argv)
    options.systems = [name for name in options.systems.split(",") if name]
    if unknown := set(options.systems) - {HEADRACE, *PEERS}:
        parser.error(f"--systems: {', '.join(sorted(unknown))}: known are {', '.join([HEADRACE, *PEERS])}")
    options.peers_python = [python.absolute() for python in options.peers_python]
    return (
        Work(
            environment=options.environment,
            lanes=options.lanes,
            steps=options.steps,
            minibatch=options.minibatch,
            epochs=options.epochs,
            total_steps=options.total_steps,
            target_return=options.target,
            learning_rate=options.learning_rate,
        ),
        options,
    )


def main() -> None:
    """Measure and report."""
    work, options = parse()
    print(f"{work.batch} transitions a batch, {asdict(work)}, {os.cpu_count()} cores", flush=True)
    summary = {"work": asdict(work), "cores": os.cpu_count(), **summarize(run_rounds(work, options))}
    print_summary(summary)
    if options.json is not None:
        options.json.write_text(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
