"""A real ``headrace train`` with its processes, as one of the systems of the end-to-end benchmark.

Evaluation and TensorBoard are off, as in the peers; everything else is as users run it. Times come from what
the services wrote themselves: training begins when the first sampler is connected and ends when the
paramserver ends the run.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Outcome, Work, versions
from headrace.events import read_events

ROOT = Path(__file__).parent.parent
SHARES = ("learner_wait_share", "sampler_throttled_share")


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
    train = [sys.executable, "-P", "-m", "headrace.cli.entry", "train"]
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
