"""PPO as a good single-file implementation does it: the peer of Headrace's end-to-end figures.

Written for this comparison, in the manner of CleanRL's ``ppo.py``: one process, a Gymnasium
``SyncVectorEnv``, separate tanh towers in ``nn.Sequential``, ``torch.distributions``, a stock Adam with
epsilon 1e-5 and ``clip_grad_norm_``. Nothing in it is slowed down.

    python -P -m benchmarks.peers.cleanrl_style --work '{"total_steps": 100000}'
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions.categorical import Categorical

from benchmarks.peers.protocol import Outcome, Work, read_work, tell, versions


@dataclass(frozen=True)
class Settings:
    """Hyperparameters; the names and defaults are CleanRL's where it has them."""

    environment: str = "CartPole-v1"
    seed: int = 1
    total_steps: int = 100_000
    learning_rate: float = 2.5e-4
    num_envs: int = 8
    num_steps: int = 128
    anneal_learning_rate: bool = True
    gamma: float = 0.99
    gae_lambda: float = 0.95
    minibatch_size: int = 256
    update_epochs: int = 4
    clip: float = 0.2
    entropy_coefficient: float = 0.01
    value_coefficient: float = 0.5
    max_grad_norm: float = 0.5


def layer_init(layer: nn.Linear, gain: float = 2.0**0.5) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    """Two separate towers of 2 x 64 tanh."""

    def __init__(self, num_observations: int, num_actions: int) -> None:
        super().__init__()

        def tower(outputs: int, gain: float) -> nn.Sequential:
            return nn.Sequential(
                layer_init(nn.Linear(num_observations, 64)),
                nn.Tanh(),
                layer_init(nn.Linear(64, 64)),
                nn.Tanh(),
                layer_init(nn.Linear(64, outputs), gain),
            )

        self.critic = tower(1, 1.0)
        self.actor = tower(num_actions, 0.01)

    def value(self, observation: Tensor) -> Tensor:
        """Values ``[N, 1]``."""
        result: Tensor = self.critic(observation)
        return result

    def action_and_value(
        self, observation: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Action, its log probability, entropy and value, ``[N]`` or ``[N, 1]``."""
        distribution = Categorical(logits=self.actor(observation))
        if action is None:
            action = distribution.sample()  # type: ignore[no-untyped-call]
        log_prob, entropy = distribution.log_prob(action), distribution.entropy()  # type: ignore[no-untyped-call]
        return action, log_prob, entropy, self.critic(observation)


@dataclass
class Rollout:
    """One batch, time-major ``[T, B]`` tensors."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    dones: Tensor  # dones[t]: the episode ended before observation t
    values: Tensor
    next_observation: Tensor
    next_done: Tensor


class Trainer:
    """The agent and its optimizer."""

    def __init__(self, settings: Settings, num_observations: int, num_actions: int) -> None:
        torch.manual_seed(settings.seed)
        self.settings = settings
        self.agent = Agent(num_observations, num_actions)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), lr=settings.learning_rate, eps=1e-5)
        self._rng = np.random.default_rng(settings.seed)

    def advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """GAE and returns ``[T, B]``."""
        settings = self.settings
        with torch.no_grad():
            next_value = self.agent.value(rollout.next_observation).reshape(-1)
            advantages = torch.zeros_like(rollout.rewards)
            last = torch.zeros_like(next_value)
            for t in reversed(range(settings.num_steps)):
                if t == settings.num_steps - 1:
                    alive, following = 1.0 - rollout.next_done, next_value
                else:
                    alive, following = 1.0 - rollout.dones[t + 1], rollout.values[t + 1]
                delta = rollout.rewards[t] + settings.gamma * following * alive - rollout.values[t]
                last = delta + settings.gamma * settings.gae_lambda * alive * last
                advantages[t] = last
        return advantages, advantages + rollout.values

    def update(self, rollout: Rollout) -> None:
        """All epochs on one batch."""
        settings = self.settings
        advantages, returns = self.advantages(rollout)
        observations = rollout.observations.reshape(-1, rollout.observations.shape[-1])
        actions, log_probs = rollout.actions.reshape(-1), rollout.log_probs.reshape(-1)
        flat_advantages, flat_returns = advantages.reshape(-1), returns.reshape(-1)
        indices = np.arange(len(actions))
        for _ in range(settings.update_epochs):
            self._rng.shuffle(indices)
            for start in range(0, len(indices), settings.minibatch_size):
                chosen = indices[start : start + settings.minibatch_size]
                _, new_log_prob, entropy, new_value = self.agent.action_and_value(
                    observations[chosen], actions[chosen]
                )
                log_ratio = new_log_prob - log_probs[chosen]
                ratio = log_ratio.exp()
                advantage = flat_advantages[chosen]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                policy_loss = torch.max(
                    -advantage * ratio, -advantage * torch.clamp(ratio, 1 - settings.clip, 1 + settings.clip)
                ).mean()
                value_loss = 0.5 * ((new_value.view(-1) - flat_returns[chosen]) ** 2).mean()
                loss = (
                    policy_loss
                    - settings.entropy_coefficient * entropy.mean()
                    + settings.value_coefficient * value_loss
                )
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(self.agent.parameters(), settings.max_grad_norm)
                self.optimizer.step()


def collect(
    trainer: Trainer,
    environments: gym.vector.SyncVectorEnv,
    observation: Tensor,
    done: Tensor,
    finished: deque[float],
) -> Rollout:
    """``num_steps`` of every environment with the current policy."""
    settings = trainer.settings
    shape = (settings.num_steps, settings.num_envs)
    observations = torch.zeros((*shape, observation.shape[-1]))
    actions, log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
    for t in range(settings.num_steps):
        observations[t], dones[t] = observation, done
        with torch.no_grad():
            action, log_prob, _, value = trainer.agent.action_and_value(observation)
        values[t], actions[t], log_probs[t] = value.flatten(), action, log_prob
        following, reward, terminated, truncated, info = environments.step(action.numpy())
        rewards[t] = torch.tensor(reward)
        observation = torch.as_tensor(following, dtype=torch.float32)
        done = torch.as_tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
        if "final_info" in info:
            finished.extend(info["final_info"]["episode"]["r"][info["_final_info"]].tolist())
    return Rollout(observations, actions, log_probs, rewards, dones, values, observation, done)


def train(settings: Settings, *, target_return: float | None = None) -> Outcome:
    """The whole loop, until the last 100 training episodes reach ``target_return`` on average."""
    torch.set_num_threads(1)

    def make() -> gym.Env[np.ndarray, np.int64]:
        return gym.wrappers.RecordEpisodeStatistics(gym.make(settings.environment))

    environments = gym.vector.SyncVectorEnv(
        [make for _ in range(settings.num_envs)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    space, actions = environments.single_observation_space, environments.single_action_space
    assert isinstance(space, gym.spaces.Box)
    assert isinstance(actions, gym.spaces.Discrete)
    trainer = Trainer(settings, int(np.prod(space.shape)), int(actions.n))
    batch = settings.num_steps * settings.num_envs
    updates = -(-settings.total_steps // batch)
    finished: deque[float] = deque(maxlen=100)
    began_at = time.time()
    first, _ = environments.reset(seed=settings.seed)
    observation, done = torch.as_tensor(first), torch.zeros(settings.num_envs)
    steps, reached_at = 0, None
    for update in range(updates):
        if settings.anneal_learning_rate:
            trainer.optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - update / updates)
        rollout = collect(trainer, environments, observation, done, finished)
        observation, done = rollout.next_observation, rollout.next_done
        trainer.update(rollout)
        steps += batch
        if target_return is not None and len(finished) == 100 and np.mean(finished) >= target_return:
            reached_at = time.time()
            break
    ended_at = time.time()
    environments.close()
    return Outcome(
        env_steps=steps,
        samples_trained=steps * settings.update_epochs,
        began_at=began_at,
        ended_at=ended_at,
        reached_at=reached_at,
        return_mean=float(np.mean(finished)) if finished else None,
        notes=versions("torch", "gymnasium", "numpy"),
    )


def settings_of(work: Work) -> Settings:
    """The benchmark's settings by CleanRL's names."""
    return Settings(
        environment=work.environment,
        seed=work.seed,
        total_steps=work.total_steps,
        learning_rate=work.learning_rate,
        num_envs=work.lanes,
        num_steps=work.steps,
        gamma=work.gamma,
        gae_lambda=work.gae_lambda,
        minibatch_size=work.minibatch,
        update_epochs=work.epochs,
        clip=work.clip,
        entropy_coefficient=work.entropy_coefficient,
        value_coefficient=work.value_coefficient,
        max_grad_norm=work.max_grad_norm,
    )


def main() -> None:
    """Run one training and say what it gave."""
    work = read_work()
    tell(train(settings_of(work), target_return=work.target_return))


if __name__ == "__main__":
    main()
