"""Headrace as one of the systems of the end-to-end benchmark: a real ``headrace train`` with its processes.

    python -P -m benchmarks.headrace_run --work JSON --run-dir DIR [--samplers 1] [--set KEY=VALUE ...]

Evaluation and TensorBoard are off, as in the peers; everything else is as users run it. Times come from what
the services wrote themselves: training begins when the first sampler is connected and ends when the
paramserver ends the run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks.peers.protocol import Outcome, Work, tell, versions
from headrace.events import read_events

ROOT = Path(__file__).parent.parent
SHARES = ("learner_wait_share", "sampler_throttled_share")
_TIMEOUT_S = 1800.0


def document(work: Work, *, samplers: int = 1) -> dict[str, Any]:
    """The work as a configuration: each sampler has its share of the lanes."""
    stop: dict[str, float] = {"env_steps": work.total_steps}
    if work.target_return is not None:
        stop["return"] = work.target_return
    if work.lanes % samplers:
        raise SystemExit(f"{work.lanes} lanes can't be shared by {samplers} samplers")
    return {
        "run": {"seed": work.seed, "stop": stop},
        "environment": {"id": work.environment, "lanes": work.lanes // samplers},
        "policy": {"hidden": [64, 64], "activation": "tanh"},
        "algorithm": {
            "name": "ppo",
            "batch_steps": work.batch,
            "minibatch_size": work.minibatch,
            "epochs": work.epochs,
            "gamma": work.gamma,
            "gae_lambda": work.gae_lambda,
            "learning_rate": work.learning_rate,
            "learning_rate_schedule": "linear",
            "entropy_coefficient": work.entropy_coefficient,
            "value_coefficient": work.value_coefficient,
            "max_grad_norm": work.max_grad_norm,
            "clip": work.clip,
        },
        "sampler": {"count": samplers, "fragment_length": work.steps},
        "sync": {"max_policy_lag": 1, "lag_control": "pace"},
        "evaluation": {"enabled": False},
        "metrics": {"tensorboard": False},
    }


def command(config: Path, folder: Path, *arguments: str) -> list[str]:
    """``headrace train``, by module so that it needs no installed script."""
    train = [sys.executable, "-P", "-m", "headrace.cli.main", "train"]
    return [*train, str(config), "--run-dir", str(folder), *arguments]


def environment(*python_path: Path) -> dict[str, str]:
    """Of a started process: the repository can be imported, and ``python_path`` before it."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*python_path, ROOT]))}


def read_outcome(folder: Path) -> Outcome:
    """What a finished run left."""
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    events = read_events(folder)
    began_at = min(event["time"] for event in events if event["kind"] == "connected")
    ended = next(event for event in events if event["kind"] == "run_ended")
    reached = ended["reason"].startswith("run.stop.return")
    return Outcome(
        env_steps=summary["env_steps"],
        samples_trained=summary["samples_trained"],
        began_at=began_at,
        ended_at=ended["time"],
        reached_at=ended["time"] if reached else None,
        return_mean=summary["return"]["mean"],
        notes={
            "learner_wait_share": summary["learner"]["wait_share"],
            "sampler_throttled_share": summary["sampler"]["throttled_share"],
            "policy_lag_max": summary["policy_lag"]["max"],
            "balanced": summary["ledger"]["balanced"],
            **versions("torch", "gymnasium", "grpcio", "numpy"),
        },
    )


def run(work: Work, folder: Path, *, samplers: int, overrides: list[str]) -> Outcome:
    """Train in ``folder`` to the end."""
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "benchmark.yaml"
        config.write_text(yaml.safe_dump(document(work, samplers=samplers)), "utf-8")
        done = subprocess.run(
            command(config, folder, *overrides),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"headrace train ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return read_outcome(folder)


def main() -> None:
    """Run and tell."""
    parser = argparse.ArgumentParser(description="Run Headrace as a system of the end-to-end benchmark.")
    parser.add_argument("--work", default="{}")
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--samplers", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the configuration")
    arguments = parser.parse_args()
    work = Work(**json.loads(arguments.work))
    tell(run(work, arguments.run_dir, samplers=arguments.samplers, overrides=arguments.set))


if __name__ == "__main__":
    main()
