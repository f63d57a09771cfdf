"""The plain replay loop learns what there is to learn, with the right values, the same way each time."""

from __future__ import annotations

from typing import Any

import learning
import numpy as np
import pytest

from headrace.config.sections import Config
from headrace.testing.plain_replay_loop import PlainReplayLoop
from headrace.types import ACTION_VALUE, OBSERVATION, REWARD, VALID, VALUE, PolicyVersion


def loop_config(
    name: str,
    environment: dict[str, Any],
    *,
    replay: dict[str, Any] | None = None,
    count: int = 1,
    **algorithm: Any,
) -> Config:
    return learning.make_config(
        name,
        environment={"lanes": 8, **environment},
        policy={"hidden": [32], "activation": "relu"},
        sampler={"fragment_length": 16, "count": count},
        replay={"samples_per_insert": 16, "min_size_to_sample": 128, **(replay or {})},
        algorithm={
            "batch_size": 64,
            "gradient_steps": 16,
            "learning_rate": 3e-3,
            "tau": 0.05,
            "target_every": 1,
            "random_steps": 256,
            **algorithm,
        },
    )


def run(config: Config, env_steps: int) -> PlainReplayLoop:
    loop = PlainReplayLoop(config)
    while loop.num_env_steps < env_steps:
        loop.turn()
    for sampler in loop.samplers:
        sampler.actor.load(loop.algorithm.acting_parameters())
    loop.close()
    return loop


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dueling": True, "double": False},
        {"n_step": 3, "replay": {"selector": "prioritized"}, "count": 2},
    ],
)
def test_dqn_learns_to_repeat_a_category(options: dict[str, Any]) -> None:
    loop = run(
        loop_config("dqn", {"id": "learning:IdentityEnv"}, gamma=0.5, exploration_steps=2000, **options), 4000
    )
    assert loop.samplers[0].actor.greedy({"": np.arange(4)})[""].tolist() == [0, 1, 2, 3]
    assert np.mean(loop.recent_returns) > 8.5  # of 10


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_it_learns_to_repeat_a_position(name: str) -> None:
    environment = {"id": "learning:IdentityEnv", "kwargs": {"continuous": True}}
    loop = run(loop_config(name, environment, gamma=0.0), 6000)
    shown = np.array([[-1.5], [-0.5], [0.5], [1.5]], np.float32)
    np.testing.assert_allclose(loop.samplers[0].actor.greedy({"": shown})[""], shown, atol=0.35)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_step_cap_is_a_truncation_so_the_value_goes_to_its_limit(n_step: int) -> None:
    environment = {"id": "environments:EndlessEnv", "max_episode_steps": 10}
    loop = run(loop_config("dqn", environment, gamma=0.9, n_step=n_step), 4000)
    value = loop.samplers[0].actor.value({"": np.ones((1, 3), np.float32)})
    assert value.item() == pytest.approx(1 / (1 - 0.9), rel=0.05)


@pytest.mark.parametrize(("name", "environment"), [("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")])
def test_same_seed_same_bits(name: str, environment: str) -> None:
    config = loop_config(name, {"id": environment}, count=2, replay={"selector": "prioritized"})
    first, second = (run(config, 700) for _ in range(2))
    assert first.num_updates == second.num_updates > 0
    for method in ("acting_parameters", "training_state"):
        one, other = getattr(first.algorithm, method)(), getattr(second.algorithm, method)()
        assert all(np.array_equal(one[key], other[key]) for key in one)


def test_each_transition_is_learned_from_as_often_as_asked() -> None:
    config = loop_config("dqn", {"id": "CartPole-v1"}, replay={"samples_per_insert": 8})
    loop = run(config, 2000)
    samples = loop.num_updates * 16 * 64
    assert samples == pytest.approx(8 * (loop.num_env_steps - 128), abs=16 * 64 + 8 * 128)


def test_a_fragment_says_what_the_actions_taken_and_the_greedy_ones_are_worth() -> None:
    poison = {"id": "environments:PoisonEnv", "kwargs": {"kind": "nan_reward", "probability": 0.05}}
    loop = PlainReplayLoop(loop_config("dqn", poison, random_steps=0, epsilon_initial=0.5))
    sampler = loop.samplers[0]
    sampler.actor.load(loop.algorithm.acting_parameters())
    fragments = [sampler.rollout.run(PolicyVersion(0, 0)) for _ in range(4)]
    loop.close()
    voided = 0
    for fragment in fragments:
        assert fragment is not None
        columns = fragment.columns
        valid = columns.get(VALID, np.ones(columns[REWARD].shape, np.bool_))
        worth, best = columns[ACTION_VALUE], columns[VALUE]
        expected = [sampler.actor.value({"": row}) for row in columns[OBSERVATION]]
        np.testing.assert_allclose(best[valid], np.array(expected)[valid], rtol=1e-5)
        assert (worth <= best).all()
        assert (worth < best).any()
        voided += int((~valid & (worth == 0.0)).sum())
    assert voided > 0
