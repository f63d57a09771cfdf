"""RLlib's PPO: its driver learns, one env runner process steps all lanes.

PEERS_PYTHON -P -m benchmarks.peers.rllib_ppo --work JSON
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from benchmarks.peers.protocol import NOT_INSTALLED, Outcome, Work, read_work, tell, versions

try:
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
except ImportError as error:
    print(f"not installed: {error}")
    sys.exit(NOT_INSTALLED)


def config_of(work: Work) -> Any:
    """The work in RLlib's words."""
    return (
        PPOConfig()
        .environment(work.environment)
        .env_runners(
            num_env_runners=1,
            num_envs_per_env_runner=work.lanes,
            rollout_fragment_length=work.steps,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=work.batch,
            minibatch_size=work.minibatch,
            num_epochs=work.epochs,
            lr=[[0, work.learning_rate], [work.total_steps, 0.0]],
            gamma=work.gamma,
            lambda_=work.gae_lambda,
            clip_param=work.clip,
            vf_clip_param=float("inf"),
            vf_loss_coeff=work.value_coefficient,
            entropy_coeff=work.entropy_coefficient,
            grad_clip=work.max_grad_norm,
            use_kl_loss=False,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .reporting(metrics_num_episodes_for_smoothing=100, min_time_s_per_iteration=None)
        .debugging(seed=work.seed)
    )


def main() -> None:
    """Run one training and say what it gave."""
    work = read_work()
    logging.getLogger("ray").setLevel(logging.ERROR)
    os.environ["RAY_AUTH_MODE"] = "disabled"  # else it leaves a token in the home directory
    ray.init(num_cpus=max(2, os.cpu_count() or 2), include_dashboard=False, log_to_driver=False)
    algorithm = config_of(work).build_algo()
    began_at = time.time()
    steps, reached_at, mean = 0, None, None
    while steps < work.total_steps and reached_at is None:
        runners = algorithm.train()["env_runners"]
        steps = int(runners["num_env_steps_sampled_lifetime"])
        mean = runners.get("episode_return_mean")
        if work.target_return is not None and mean is not None and mean >= work.target_return:
            reached_at = time.time()
    ended_at = time.time()
    algorithm.stop()
    ray.shutdown()
    tell(
        Outcome(
            env_steps=steps,
            samples_trained=steps * work.epochs,
            began_at=began_at,
            ended_at=ended_at,
            reached_at=reached_at,
            return_mean=None if mean is None else float(mean),
            notes=versions("ray", "torch", "gymnasium"),
        )
    )


if __name__ == "__main__":
    main()
