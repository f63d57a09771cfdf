"""Kills parts of a run at random, again and again, and says how the run took it.

    python -P -m benchmarks.kills [--config configs/cartpole-dqn.yaml] [--minutes 10] [--every 30]
                                  [--of sampler,replay,redis,learner] [--seed 7] [key=value ...]

Exit code 1 unless the run finishes, its ledger balances and its versions never fell.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.headrace_run import ROOT, command, environment
from headrace.local.redis import FOLDER as REDIS_FOLDER
from headrace.registry import read_records


def pids(run_dir: Path) -> dict[str, int]:
    """Processes of a run by name, as they say themselves; Redis has a file of its own for it."""
    found = {record.name: record.pid for record in read_records(run_dir)}
    pid_file = run_dir / REDIS_FOLDER / "redis.pid"
    text = pid_file.read_text("utf-8").strip() if pid_file.exists() else ""
    return {**found, **({"redis-0": int(text)} if text else {})}


def kill_one(run_dir: Path, services: list[str], rng: random.Random) -> str:
    """Kill a process of one of ``services``; its name, "" if none of them runs just now."""
    running = {
        name: pid
        for name, pid in pids(run_dir).items()
        if name.rpartition("-")[0] in services and Path(f"/proc/{pid}").exists()
    }
    if not running:
        return ""
    name = rng.choice(sorted(running))
    os.kill(running[name], signal.SIGKILL)
    return name


def versions(run_dir: Path) -> list[int]:
    """Policy versions in the order in which they were seen."""
    rows = (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    return [int(json.loads(row)["policy_version"]) for row in rows]


def outcome(run_dir: Path, killed: Counter[str], exit_code: int) -> dict[str, Any]:
    """What came of it."""
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    seen = versions(run_dir)
    return {
        "exit_code": exit_code,
        "status": summary["status"],
        "killed": dict(killed),
        "restarts": summary["restarts"],
        "env_steps": summary["env_steps"],
        "updates": summary["updates"],
        "return_mean": summary["return"]["mean"],
        "best_eval": summary["return"]["best_eval"],
        "ledger": summary["ledger"],
        "cold_tier": summary["cold_tier"],
        "versions_never_fell": seen == sorted(seen),
    }


def main() -> None:
    """Run, kill, tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "cartpole-dqn.yaml")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills")
    parser.add_argument("--of", default="sampler,replay,redis,learner", help="services to kill")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    rng, killed = random.Random(arguments.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as scratch:
        run_dir = Path(scratch) / "run"
        stop = [f"run.stop.wall_s={60 * arguments.minutes}", "run.stop.env_steps=", "run.stop.return="]
        limits = ["restart.max_restarts=1000", "algorithm.learning_rate_schedule=constant"]
        started = subprocess.Popen(
            command(arguments.config, run_dir, *stop, *limits, *arguments.overrides, "--quiet"),
            env=environment(),
            start_new_session=True,
        )
        try:
            due = time.monotonic() + arguments.every
            while started.poll() is None:
                time.sleep(0.5)
                if time.monotonic() >= due and run_dir.is_dir():
                    due += arguments.every
                    name = kill_one(run_dir, arguments.of.split(","), rng)
                    killed[name or "nobody"] += 1
                    print(f"killed {name or 'nobody'}", flush=True)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        result = outcome(run_dir, killed, started.returncode)
    print(json.dumps(result, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1), "utf-8")
    good = result["status"] == "finished" and result["ledger"]["balanced"] and result["versions_never_fell"]
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
