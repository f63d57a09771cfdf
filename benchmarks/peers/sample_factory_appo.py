"""Sample Factory's APPO: asynchronous, in its own processes: two workers as it recommends for two cores.

PEERS_PYTHON -P -m benchmarks.peers.sample_factory_appo --work JSON
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

from benchmarks.peers.protocol import NOT_INSTALLED, Outcome, Work, read_work, tell, versions

try:
    import gymnasium as gym
    import torch
    from sample_factory.algo.runners.runner import AlgoObserver
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner
except ImportError as error:
    print(f"not installed: {error}")
    sys.exit(NOT_INSTALLED)


class _Watch(AlgoObserver):  # type: ignore[misc]
    """Notes when training begins, how far it is after each update, when the target is reached."""

    def __init__(self, target_return: float | None) -> None:
        self._target = target_return
        self.began_at = time.time()
        self.ended_at = 0.0
        self.env_steps = 0
        self.return_mean: float | None = None
        self.reached_at: float | None = None

    def on_start(self, runner: Any) -> None:
        """The components are started; they load their code before they step."""
        self.began_at = time.time()

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        """After each update."""
        self.ended_at, self.env_steps = time.time(), sum(runner.env_steps.values())
        returns = runner.policy_avg_stats.get("reward", [()])[0]
        if not returns:
            return
        self.return_mean = float(sum(returns) / len(returns))
        if self._target is not None and len(returns) == 100 and self.return_mean >= self._target:
            self.reached_at = self.reached_at or self.ended_at
            runner.cfg.train_for_env_steps = 0


def make_environment(
    name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None
) -> Any:
    """What Sample Factory's processes call."""
    return gym.make(name, render_mode=render_mode)


def arguments_of(work: Work, folder: str) -> list[str]:
    """The work in Sample Factory's words."""
    workers = 2 if work.lanes % 4 == 0 else 1
    settings = {
        "algo": "APPO",
        "env": work.environment,
        "experiment": "benchmark",
        "train_dir": folder,
        "device": "cpu",
        "seed": work.seed,
        "num_workers": workers,
        "num_envs_per_worker": work.lanes // workers,
        "worker_num_splits": 2 if workers == 2 else 1,
        "rollout": work.steps,
        "batch_size": work.minibatch,
        "num_batches_per_epoch": work.batch // work.minibatch,
        "num_epochs": work.epochs,
        "train_for_env_steps": work.total_steps,
        "gamma": work.gamma,
        "gae_lambda": work.gae_lambda,
        "learning_rate": work.learning_rate,
        "lr_schedule": "constant",
        "adam_eps": 1e-5,
        "max_grad_norm": work.max_grad_norm,
        "ppo_clip_ratio": work.clip,
        "exploration_loss_coeff": work.entropy_coefficient,
        "value_loss_coeff": work.value_coefficient,
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        "use_rnn": False,
        "recurrence": 1,
        "normalize_input": False,
        "normalize_returns": False,
        "stats_avg": 100,
        "experiment_summaries_interval": 3600,
        "save_every_sec": 3600,
    }
    layers = ["--encoder_mlp_layers", "64", "64"]
    return [*(f"--{name}={value}" for name, value in settings.items()), *layers]


def main() -> None:
    """Run one training and say what it gave."""
    work = read_work()
    torch.set_num_threads(1)
    register_env(work.environment, make_environment)
    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_of(work, folder)
        parser, _ = parse_sf_args(arguments)
        cfg, runner = make_runner(parse_full_cfg(parser, arguments))
        watch = _Watch(work.target_return)
        runner.register_observer(watch)
        runner.init()
        runner.run()
    tell(
        Outcome(
            env_steps=watch.env_steps,
            samples_trained=watch.env_steps * work.epochs,
            began_at=watch.began_at,
            ended_at=watch.ended_at,
            reached_at=watch.reached_at,
            return_mean=watch.return_mean,
            notes={
                "workers": cfg.num_workers,
                "cores": os.cpu_count(),
                **versions("sample-factory", "torch"),
            },
        )
    )


if __name__ == "__main__":
    main()
