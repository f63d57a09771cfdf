"""The plain loop learns what there is to learn, with the right values, the same way each time."""

from __future__ import annotations

from typing import Any

import learning
import numpy as np
import pytest

from headrace.config.sections import Config
from headrace.testing.plain_loop import PlainLoop


def loop_config(environment: dict[str, Any], *, name: str = "ppo", **algorithm: Any) -> Config:
    return learning.make_config(
        name,
        environment={"lanes": 8, **environment},
        sampler={"fragment_length": 16},
        algorithm={"batch_steps": 128, **algorithm},
    )


def run(config: Config, updates: int) -> PlainLoop:
    loop = PlainLoop(config)
    for _ in range(updates):
        loop.update()
    loop.actor.load(loop.algorithm.acting_parameters())
    loop.close()
    return loop


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala", "appo", "a3c"])
def test_it_learns_to_repeat_a_category(name: str) -> None:
    environment = {"id": "learning:IdentityEnv"}
    config = loop_config(environment, name=name, learning_rate=3e-3, gamma=0.5)
    loop = run(config, 60 if name in ("ppo", "appo") else 150)
    assert loop.actor.greedy({"": np.arange(4)})[""].tolist() == [0, 1, 2, 3]
    assert np.mean(loop.recent_returns) > 8.5  # of 10


def test_it_learns_to_repeat_a_position() -> None:
    environment = {"id": "learning:IdentityEnv", "kwargs": {"continuous": True}}
    loop = run(loop_config(environment, learning_rate=3e-3, gamma=0.0, epochs=10, minibatch_size=64), 60)
    shown = np.array([[-1.5], [-0.5], [0.5], [1.5]], np.float32)
    np.testing.assert_allclose(loop.actor.greedy({"": shown})[""], shown, atol=0.35)


@pytest.mark.parametrize("options", [{}, {"normalize_value": True}, {"reward_scale": 0.1}])
def test_a_step_cap_is_a_truncation_so_the_value_goes_to_its_limit(options: dict[str, Any]) -> None:
    environment = {"id": "environments:EndlessEnv", "max_episode_steps": 10}
    loop = run(loop_config(environment, gamma=0.9, learning_rate=3e-3, epochs=10, **options), 60)
    value = loop.actor.value({"": np.ones((1, 3), np.float32)})
    assert value.item() == pytest.approx(1 / (1 - 0.9), rel=0.05)


def test_same_seed_same_bits() -> None:
    config = loop_config({"id": "CartPole-v1"})
    first, second = (run(config, 3).algorithm.acting_parameters() for _ in range(2))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_batch_is_as_many_fragments_as_batch_steps_asks_for() -> None:
    config = loop_config({"id": "CartPole-v1"}, batch_steps=384)
    assert run(config, 2).num_env_steps == 768
