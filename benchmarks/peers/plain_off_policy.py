"""DQN, TD3 and SAC as they are usually written: torch's graph, torch's Adam, loops over parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

TAU = 0.005


class Items(NamedTuple):
    """A minibatch: returns are discounted rewards, discount is 0 where nothing follows."""

    observation: Tensor
    action: Tensor
    returns: Tensor
    discount: Tensor
    next_observation: Tensor


def mlp(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """ReLU between layers."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise([inputs, *hidden]):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))


def copy_of(network: nn.Sequential, inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """A network with the same values."""
    target = mlp(inputs, hidden, outputs)
    target.load_state_dict(network.state_dict())
    return target


@torch.no_grad()
def polyak(networks: Iterable[tuple[nn.Module, nn.Module]]) -> None:
    """Move each target a little towards its network."""
    for network, target in networks:
        for value, average in zip(network.parameters(), target.parameters(), strict=True):
            average.data.copy_(TAU * value.data + (1.0 - TAU) * average.data)


class PlainDqn:
    """Double DQN with a hard copy every ``target_every`` steps."""

    def __init__(self, features: int, actions: int, hidden: Sequence[int], *, target_every: int) -> None:
        self.q, self.steps, self.every = mlp(features, hidden, actions), 0, target_every
        self.target = copy_of(self.q, features, hidden, actions)
        self.optimizer = torch.optim.Adam(self.q.parameters(), 1e-3)

    def step(self, items: Items) -> None:
        """One gradient step."""
        with torch.no_grad():
            chosen = self.q(items.next_observation).argmax(1, keepdim=True)
            next_value = self.target(items.next_observation).gather(1, chosen).squeeze(1)
            target = items.returns + items.discount * next_value
        q = self.q(items.observation).gather(1, items.action).squeeze(1)
        loss = functional.smooth_l1_loss(q, target)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self.optimizer.step()
        loss.item()
        self.steps += 1
        if self.steps % self.every == 0:
            self.target.load_state_dict(self.q.state_dict())


class _Critics:
    """Two critics and their targets."""

    def __init__(self, features: int, slots: int, hidden: Sequence[int]) -> None:
        self.first, self.second = (mlp(features + slots, hidden, 1) for _ in range(2))
        self.targets = [copy_of(each, features + slots, hidden, 1) for each in (self.first, self.second)]
        parameters = [*self.first.parameters(), *self.second.parameters()]
        self.optimizer = torch.optim.Adam(parameters, 1e-3)

    def next_value(self, observation: Tensor, action: Tensor) -> Tensor:
        pairs = torch.cat([observation, action], 1)
        first, second = (target(pairs).squeeze(1) for target in self.targets)
        return torch.minimum(first, second)

    def fit(self, items: Items, target: Tensor) -> None:
        pairs = torch.cat([items.observation, items.action], 1)
        values = [each(pairs).squeeze(1) for each in (self.first, self.second)]
        loss = functional.mse_loss(values[0], target) + functional.mse_loss(values[1], target)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        loss.item()


class PlainTd3:
    """TD3 with a policy delay of 2."""

    def __init__(self, features: int, slots: int, hidden: Sequence[int]) -> None:
        self.actor, self.critics = mlp(features, hidden, slots), _Critics(features, slots, hidden)
        self.target, self.steps = copy_of(self.actor, features, hidden, slots), 0
        self.optimizer = torch.optim.Adam(self.actor.parameters(), 1e-3)

    def step(self, items: Items) -> None:
        """One gradient step of the critics, every other time one of the actor."""
        self.steps += 1
        with torch.no_grad():
            noise = (torch.randn_like(items.action) * 0.2).clamp(-0.5, 0.5)
            action = (torch.tanh(self.target(items.next_observation)) + noise).clamp(-1.0, 1.0)
            next_value = self.critics.next_value(items.next_observation, action)
            target = items.returns + items.discount * next_value
        self.critics.fit(items, target)
        if self.steps % 2 == 0:
            pairs = torch.cat([items.observation, torch.tanh(self.actor(items.observation))], 1)
            loss = -self.critics.first(pairs).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss.item()
            networks = (self.critics.first, self.critics.second, self.actor)
            polyak(zip(networks, [*self.critics.targets, self.target], strict=True))


class PlainSac:
    """SAC with an adapted temperature."""

    def __init__(self, features: int, slots: int, hidden: Sequence[int]) -> None:
        self.actor, self.critics = mlp(features, hidden, 2 * slots), _Critics(features, slots, hidden)
        self.optimizer = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.log_alpha, self.target_entropy = torch.zeros(1, requires_grad=True), -float(slots)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], 1e-3)

    def _sample(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(observation).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        unsquashed = normal.rsample()
        action = torch.tanh(unsquashed)
        log_prob = normal.log_prob(unsquashed)  # type: ignore[no-untyped-call]
        log_prob = log_prob - torch.log(1 - action.square() + 1e-6)
        return action, log_prob.sum(1)

    def step(self, items: Items) -> None:
        """One gradient step of critics, actor and temperature."""
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            action, log_prob = self._sample(items.next_observation)
            next_value = self.critics.next_value(items.next_observation, action) - alpha * log_prob
            target = items.returns + items.discount * next_value
        self.critics.fit(items, target)
        action, log_prob = self._sample(items.observation)
        pairs = torch.cat([items.observation, action], 1)
        smaller = torch.min(self.critics.first(pairs), self.critics.second(pairs)).squeeze(1)
        loss = (alpha * log_prob - smaller).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        loss.item()
        alpha_loss = -(self.log_alpha * (log_prob.detach() + self.target_entropy)).mean()
        self.alpha_optimizer.zero_grad()
        alpha_loss.backward()  # type: ignore[no-untyped-call]
        self.alpha_optimizer.step()
        polyak(zip((self.critics.first, self.critics.second), self.critics.targets, strict=True))
