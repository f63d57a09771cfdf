"""Actors of off-policy algorithms: numpy and torch alike, exploring as told, in the environment's units."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import learning
import numpy as np
import pytest
from gymnasium import spaces

from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec
from headrace.errors import ConfigurationError
from headrace.nets.actor import Actor, make_actor
from headrace.nets.exploration import EPSILON, RANDOM, ladder_exponent
from headrace.rl.algorithm import make_replay_algorithm
from headrace.types import Array

BOX, CHOICE = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4, start=2)
NESTED = spaces.Dict(
    {"a": spaces.Box(-2, 2, (2,), np.float32), "b": spaces.Box(0, 1, (), np.float64)}
)  # fmt: skip
CASES = [("dqn", CHOICE), ("ddpg", NESTED), ("td3", NESTED), ("sac", NESTED)]


def make(
    name: str, action: spaces.Space[Any], actor: str = "auto", **sections: Any
) -> tuple[Config, EnvironmentSpec]:
    merged = {"policy": {"hidden": [16, 8]}, "sampler": {"actor": actor}, **sections}
    return learning.make_config(name, **merged), learning.make_spec(BOX, action)


def parameters_of(config: Config, spec: EnvironmentSpec, **scalars: float) -> dict[str, Array]:
    parameters = make_replay_algorithm(config, spec).acting_parameters()
    parameters[RANDOM] = np.array(0.0, np.float32)
    for name, value in scalars.items():
        parameters[f"exploration/{name}"] = np.array(value, np.float32)
    return parameters


def loaded(
    name: str, action: spaces.Space[Any], actor: str = "auto", *, index: int = 0, **sections: Any
) -> Actor:
    scalars = sections.pop("scalars", {})
    config, spec = make(name, action, actor, **sections)
    made = make_actor(config, spec, sampler_index=index)
    made.load(parameters_of(config, spec, **scalars))
    return made


@pytest.mark.parametrize(("name", "action"), CASES)
@pytest.mark.parametrize("hidden", [[16, 8], []])
def test_numpy_and_torch_agree_up_to_rounding(
    name: str, action: spaces.Space[Any], hidden: list[int]
) -> None:
    observation = learning.sample_leaves(BOX, 32)
    policy = {"hidden": hidden}
    ours, theirs = (loaded(name, action, kind, policy=policy) for kind in ("numpy", "torch"))
    one, other = (actor.act(observation, np.random.default_rng(1)) for actor in (ours, theirs))
    for path in one.action:
        np.testing.assert_allclose(one.action[path], other.action[path], atol=1e-5)
        np.testing.assert_allclose(
            ours.greedy(observation)[path], theirs.greedy(observation)[path], atol=1e-5
        )
    np.testing.assert_allclose(one.log_prob, other.log_prob, atol=1e-4)
    np.testing.assert_allclose(one.value, other.value, atol=1e-5)


def test_a_dueling_network_is_acted_on_alike() -> None:
    observation, algorithm = learning.sample_leaves(BOX, 32), {"dueling": True}
    ours, theirs = (loaded("dqn", CHOICE, kind, algorithm=algorithm) for kind in ("numpy", "torch"))
    np.testing.assert_allclose(ours.value(observation), theirs.value(observation), atol=1e-5)
    assert np.array_equal(ours.greedy(observation)[""], theirs.greedy(observation)[""])


@pytest.mark.filterwarnings("ignore:.*Casting input")  # of a box that is a single number
@pytest.mark.parametrize(("name", "action"), CASES)
@pytest.mark.parametrize("random", [0.0, 1.0])
def test_actions_lie_in_the_action_space(name: str, action: spaces.Space[Any], random: float) -> None:
    sections = {} if name in ("dqn", "sac") else {"algorithm": {"exploration_noise": 3.0}}
    actor = loaded(name, action, scalars={"random": random}, **sections)
    _, spec = make(name, action)
    observation = learning.sample_leaves(BOX, 64)
    acted = actor.act(observation, np.random.default_rng(1))
    for leaves in (acted.action, acted.environment_action, actor.greedy(observation)):
        for lane in range(64):
            one = spec.action.unflatten({path: leaf[lane] for path, leaf in leaves.items()})
            assert action.contains(one)


def test_the_greedy_action_has_the_greatest_value_and_epsilon_is_how_often_it_is_not_asked() -> None:
    observation = learning.sample_leaves(BOX, 4000)
    actor = loaded("dqn", CHOICE, scalars={"epsilon": 0.4})
    acted = actor.act(observation, np.random.default_rng(0))
    greedy = actor.greedy(observation)[""]
    assert acted.action_value is not None
    chosen = acted.action[""] == greedy
    assert chosen.mean() == pytest.approx(0.6 + 0.4 / 4, abs=0.03)
    np.testing.assert_array_equal(acted.action_value[chosen], acted.value[chosen])
    assert (acted.action_value[~chosen] < acted.value[~chosen]).all()
    np.testing.assert_array_equal(acted.value, actor.value(observation))
    np.testing.assert_allclose(np.exp(acted.log_prob), np.where(chosen, 0.7, 0.1), rtol=1e-5)


def test_all_actions_are_equally_likely_while_random() -> None:
    actor = loaded("dqn", CHOICE, scalars={"random": 1.0, "epsilon": 0.0})
    acted = actor.act(learning.sample_leaves(BOX, 4000), np.random.default_rng(0))
    counts = np.bincount(acted.action[""] - 2, minlength=4)
    assert counts.min() > 850
    np.testing.assert_allclose(acted.log_prob, np.log(0.25), rtol=1e-6)


def test_positions_are_uniform_while_random_and_have_that_density() -> None:
    actor = loaded("sac", NESTED, scalars={"random": 1.0})
    acted = actor.act(learning.sample_leaves(BOX, 4000), np.random.default_rng(0))
    assert np.abs(np.mean(acted.action["a"], axis=0)).max() < 0.1
    assert np.quantile(acted.action["b"], [0.25, 0.75]) == pytest.approx([0.25, 0.75], abs=0.03)
    np.testing.assert_allclose(acted.log_prob, -3 * np.log(2.0), rtol=1e-6)


def test_the_ladder_gives_each_sampler_its_own_epsilon() -> None:
    assert [round(0.4 ** ladder_exponent(i, 4), 5) for i in (0, 3)] == [0.4, round(0.4**8, 5)]
    assert ladder_exponent(0, 1) == 1.0
    observation = learning.sample_leaves(BOX, 4000)
    sampler = {"count": 3, "actor": "numpy"}
    shares = []
    for index in range(3):
        algorithm = {"epsilon_ladder": True}
        scalars = {"epsilon": 0.8}
        actor = loaded("dqn", CHOICE, index=index, algorithm=algorithm, sampler=sampler, scalars=scalars)
        acted = actor.act(observation, np.random.default_rng(index))
        shares.append(float((acted.action[""] != actor.greedy(observation)[""]).mean()))
    assert shares == pytest.approx([0.75 * 0.8**exponent for exponent in (1.0, 4.5, 8.0)], abs=0.03)


def test_noise_has_its_standard_deviation_around_the_greedy_action() -> None:
    observation = learning.sample_leaves(BOX, 4000)
    actor = loaded("td3", NESTED, algorithm={"exploration_noise": 0.05})
    acted, greedy = actor.act(observation, np.random.default_rng(0)), actor.greedy(observation)
    assert np.std(acted.action["a"] - greedy["a"]) == pytest.approx(0.05 * 2.0, rel=0.05)
    assert np.std(acted.action["b"] - greedy["b"]) == pytest.approx(0.05 * 0.5, rel=0.05)


def test_acting_takes_the_first_epsilon_from_the_algorithm() -> None:
    config, spec = make("dqn", CHOICE, algorithm={"epsilon_initial": 0.75})
    assert make_replay_algorithm(config, spec).acting_parameters()[EPSILON] == np.float32(0.75)


@pytest.mark.parametrize(
    ("name", "action"), [("dqn", NESTED), ("ddpg", CHOICE), ("td3", CHOICE), ("sac", CHOICE)]
)
def test_actors_refuse_spaces_in_words(name: str, action: spaces.Space[Any]) -> None:
    config, spec = make(name, action)
    with pytest.raises(ConfigurationError, match=rf"algorithm\.name: {name} .*needs"):
        make_actor(config, spec)


def test_numpy_actors_need_no_torch() -> None:
    code = """if True:
        import sys
        from headrace.config.sections import Config
        from headrace.envs.factory import probe
        from headrace.nets.actor import make_actor
        import headrace.rl.initial_priorities
        for algorithm, environment in (("dqn", "CartPole-v1"), ("sac", "Pendulum-v1")):
            document = {"environment": {"id": environment}, "algorithm": {"name": algorithm}}
            config = Config.model_validate(document)
            make_actor(config, probe(config.environment))
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
