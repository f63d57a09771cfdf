"""From an id to an environment: three ways to name one, and a sentence for everything that is wrong."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from headrace.config.sections import EnvironmentConfig
from headrace.envs.factory import make_environment, probe
from headrace.errors import ConfigurationError


def config(id: str, **fields: Any) -> EnvironmentConfig:
    return EnvironmentConfig(id=id, **fields)


def refusal(id: str, **fields: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        make_environment(config(id, **fields))
    (sentence,) = caught.value.problems
    return sentence


def test_a_registered_id() -> None:
    environment = make_environment(config("CartPole-v1"))
    assert isinstance(environment.unwrapped, gym.envs.classic_control.CartPoleEnv)


def test_the_registered_time_limit_is_kept() -> None:
    environment = make_environment(config("Pendulum-v1"))
    environment.reset(seed=0)
    flags = [environment.step(environment.action_space.sample())[3] for _ in range(200)]
    assert flags == [False] * 199 + [True]


def test_no_checker_and_no_order_enforcing() -> None:
    layers = str(make_environment(config("CartPole-v1")))
    assert "PassiveEnvChecker" not in layers
    assert "OrderEnforcing" not in layers


def test_a_class_in_a_module() -> None:
    environment = make_environment(config("environments:CountingEnv", kwargs={"end": "truncated"}))
    assert type(environment).__name__ == "CountingEnv"


def test_a_module_that_registers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "registers_one.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('RegistersOne-v0', 'environments:CountingEnv', max_episode_steps=3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gym.registry))
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
    environment = make_environment(config("registers_one:RegistersOne-v0", kwargs={"min_length": 9}))
    environment.reset(seed=1)
    assert [environment.step(0)[3] for _ in range(3)] == [False, False, True]


def test_a_function_in_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("makes_one")
    module.make = lambda length=1: make_environment(  # type: ignore[attr-defined]
        config("environments:CountingEnv", kwargs={"max_length": length})
    )
    monkeypatch.setitem(sys.modules, "makes_one", module)
    assert make_environment(config("makes_one:make", kwargs={"length": 3})) is not None


def test_wrappers_are_applied_in_order() -> None:
    environment = make_environment(
        config("CartPole-v1", wrappers=["gymnasium.wrappers:NormalizeReward", "gymnasium.wrappers:Autoreset"])
    )
    assert str(environment).startswith("<Autoreset<NormalizeReward<")


def test_an_unknown_id_gets_a_suggestion() -> None:
    assert refusal("CartPol-v1").startswith("environment.id: no environment 'CartPol-v1' is registered")
    assert "did you mean 'CartPole-v1'?" in refusal("CartPol-v1")
    assert "did you mean 'CartPole-v1'?" in refusal("cartpole-v1")


def test_an_unknown_module() -> None:
    assert refusal("no_such_module:Env") == (
        "environment.id: there is no module 'no_such_module' on the Python path."
    )


def test_an_unknown_name_in_a_module() -> None:
    assert refusal("environments:CountinEnv") == (
        "environment.id: environments has no environment or factory 'CountinEnv'; did you mean 'CountingEnv'?"
    )


def test_an_unknown_argument() -> None:
    sentence = refusal("environments:CountingEnv", kwargs={"max_lenght": 3})
    assert sentence.startswith("environment.kwargs: environments:CountingEnv takes no argument 'max_lenght'")
    assert "did you mean 'max_length'?" in sentence


def test_an_unknown_argument_of_a_registered_environment() -> None:
    sentence = refusal("CartPole-v1", kwargs={"suton_barto_reward": True})
    assert sentence.startswith("environment.kwargs: CartPole-v1 takes no argument 'suton_barto_reward'")
    assert "did you mean 'sutton_barto_reward'?" in sentence


def test_a_constructor_that_raises() -> None:
    sentence = refusal("environments:SpaceEnv", kwargs={"kind": "no such kind"})
    assert sentence.startswith("environment.kwargs: environments:SpaceEnv could not be made: KeyError")


def test_a_factory_of_something_else() -> None:
    assert refusal("builtins:dict") == "environment.id: builtins:dict gives a dict, not a gymnasium.Env."


@pytest.mark.parametrize("missing", ["Box2D", "ale_py"])
def test_a_missing_dependency_says_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def make() -> gym.Env[Any, Any]:
        raise gym.error.DependencyNotInstalled(f"{missing} is not installed")

    module = types.ModuleType("needs_more")
    module.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "needs_more", module)
    sentence = refusal("needs_more:make")
    install = {"Box2D": "pip install 'headrace[box2d]'", "ale_py": "pip install ale-py"}[missing]
    assert sentence.startswith("environment.id: needs_more:make needs what is not installed")
    assert sentence.endswith(f"; {install}.")


def test_a_bad_wrapper_is_named_by_its_place() -> None:
    sentence = refusal("CartPole-v1", wrappers=["gymnasium.wrappers:Autoreset", "gymnasium.wrappers:Nope"])
    assert sentence.startswith("environment.wrappers.1: gymnasium.wrappers has no callable 'Nope'")


def test_probe_gives_the_spaces() -> None:
    spec = probe(config("Pendulum-v1"))
    assert spec.environment_id == "Pendulum-v1"
    assert spec.observation.leaf("").shape == (3,)
    assert spec.action.leaf("").low == (-2.0,)


@pytest.mark.parametrize("vectorization", ["sync", "native"])
def test_probe_sees_the_same_spaces_through_every_backend(vectorization: str) -> None:
    assert probe(config("CartPole-v1", vectorization=vectorization)) == probe(config("CartPole-v1"))


def test_an_environment_without_a_vector_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match=r"environment.vectorization: Acrobot-v1 has no vector"):
        probe(config("Acrobot-v1", vectorization="native"))


def test_envpool_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigurationError, match=r"environment.vectorization: envpool needs .*pip install"):
        probe(config("CartPole-v1", vectorization="envpool"))


def test_a_missing_space_is_named(case: Callable[..., EnvironmentConfig]) -> None:
    class Spaceless(gym.Env[Any, Any]):
        action_space = gym.spaces.Discrete(2)

    module = types.ModuleType("spaceless")
    module.Spaceless = Spaceless  # type: ignore[attr-defined]
    sys.modules["spaceless"] = module
    try:
        with pytest.raises(ConfigurationError, match="spaceless:Spaceless has no observation_space"):
            probe(config("spaceless:Spaceless"))
    finally:
        del sys.modules["spaceless"]
