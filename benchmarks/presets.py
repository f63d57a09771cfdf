"""Whether the presets learn: each trained with several seeds by a real ``headrace train``, evaluated anew.

    python -P -m benchmarks.presets [--presets cartpole-ppo,...] [--seeds 1,2,3,4,5] [key=value ...]

The evaluation that counts is independent of the run's own: 100 episodes of the best checkpoint, with the
mode of the policy and seeds that no run has used.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.headrace_run import ROOT, command, environment
from headrace.local.run_folder import RunFolder
from headrace.local.trained import load_trained

PRESETS = (
    "cartpole-ppo",
    "cartpole-a2c",
    "cartpole-a3c",
    "cartpole-appo",
    "cartpole-impala",
    "acrobot-ppo",
    "pendulum-ppo",
    "lunarlander-ppo",
    "cartpole-dqn",
    "cartpole-apex",
    "lunarlander-dqn",
    "pendulum-ddpg",
    "pendulum-td3",
    "pendulum-sac",
)
EVALUATION_SEED = 1_000_003
EPISODES = 100


def train_and_evaluate(preset: str, seed: int, runs: Path, overrides: list[str]) -> dict[str, Any]:
    """One run; its summary and the independent evaluation in brief."""
    folder = runs / f"{preset}-{seed}"
    config = ROOT / "configs" / f"{preset}.yaml"
    done = subprocess.run(
        command(config, folder, f"run.seed={seed}", *overrides, "--quiet"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(
            f"{preset} with seed {seed} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    result = load_trained(RunFolder(folder), "best").evaluate(EPISODES, EVALUATION_SEED)
    return {
        "preset": preset,
        "seed": seed,
        "env_steps": summary["env_steps"],
        "reached_at_env_steps": summary["return"]["reached_at_env_steps"],
        "reached_at_s": summary["return"]["reached_at_s"],
        "wall_s": summary["wall_s"],
        "evaluation_mean": result.mean,
        "evaluation_std": result.std,
        "max_policy_lag": summary["policy_lag"]["max"],
        "balanced": summary["ledger"]["balanced"],
    }


def main() -> None:
    """Train, evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument(
        "--runs", type=Path, help="where the runs' folders go; left out: they are thrown away"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        runs = arguments.runs or Path(scratch)
        for preset in arguments.presets.split(","):
            outcomes = [
                train_and_evaluate(preset, int(seed), runs, arguments.overrides)
                for seed in arguments.seeds.split(",")
            ]
            results += outcomes
            for one in outcomes:
                print(
                    f"{preset:16} seed {one['seed']}: reached at {one['reached_at_env_steps']} of "
                    f"{one['env_steps']} steps, {one['wall_s']:.0f} s, evaluation "
                    f"{one['evaluation_mean']:.1f} +- {one['evaluation_std']:.1f}, "
                    f"balanced {one['balanced']}",
                    flush=True,
                )
            print(f"{preset:16} median {median(one['evaluation_mean'] for one in outcomes):.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), "utf-8")


if __name__ == "__main__":
    main()
