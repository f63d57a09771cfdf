"""Stable-Baselines3's PPO: one process, its own ``DummyVecEnv``, one torch thread.

PEERS_PYTHON -P -m benchmarks.peers.sb3 --work JSON
"""

from __future__ import annotations

import sys
import time

from benchmarks.peers.protocol import NOT_INSTALLED, Outcome, read_work, tell, versions

try:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
except ImportError as error:
    print(f"not installed: {error}")
    sys.exit(NOT_INSTALLED)


class _Watch(BaseCallback):  # type: ignore[misc]
    """Notes when the target is reached, and ends the training then."""

    def __init__(self, target_return: float | None) -> None:
        super().__init__()
        self._target = target_return
        self.began_at = 0.0
        self.reached_at: float | None = None

    @property
    def return_mean(self) -> float | None:
        """Over the last 100 training episodes."""
        returns = [episode["r"] for episode in self.model.ep_info_buffer or ()]
        return sum(returns) / len(returns) if returns else None

    def _on_training_start(self) -> None:
        self.began_at = time.time()

    def _on_step(self) -> bool:
        return self.reached_at is None

    def _on_rollout_start(self) -> None:
        """After an update: as everywhere, the return counts once its batch was learned from."""
        enough = len(self.model.ep_info_buffer or ()) == 100
        if enough and self._target is not None and (self.return_mean or 0.0) >= self._target:
            self.reached_at = self.reached_at or time.time()


def main() -> None:
    """Run one training and say what it gave."""
    work = read_work()
    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy",
        make_vec_env(work.environment, n_envs=work.lanes, seed=work.seed),
        learning_rate=lambda left: work.learning_rate * left,
        n_steps=work.steps,
        batch_size=work.minibatch,
        n_epochs=work.epochs,
        gamma=work.gamma,
        gae_lambda=work.gae_lambda,
        clip_range=work.clip,
        ent_coef=work.entropy_coefficient,
        vf_coef=work.value_coefficient,
        max_grad_norm=work.max_grad_norm,
        seed=work.seed,
        device="cpu",
    )
    watch = _Watch(work.target_return)
    model.learn(work.total_steps, callback=watch)
    ended_at = time.time()
    tell(
        Outcome(
            env_steps=model.num_timesteps,
            samples_trained=model.num_timesteps * work.epochs,
            began_at=watch.began_at,
            ended_at=watch.reached_at or ended_at,
            reached_at=watch.reached_at,
            return_mean=watch.return_mean,
            notes=versions("stable-baselines3", "torch", "gymnasium", "numpy"),
        )
    )


if __name__ == "__main__":
    main()
