"""From the configuration's ``environment`` section to a Gymnasium environment, with clear refusals.

``environment.id`` is a Gymnasium id, ``module:EnvId`` (the module is imported, which registers the id) or
``module:factory`` (a class or a function that returns an environment).
"""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from headrace.config.sections import EnvironmentConfig
from headrace.envs.spec import EnvironmentSpec, spec_of
from headrace.errors import ConfigurationError

Environment = gym.Env[Any, Any]

EXTRAS = {
    "Box2D": "pip install 'headrace[box2d]'",
    "MuJoCo": "pip install 'gymnasium[mujoco]'",
    "mujoco": "pip install 'gymnasium[mujoco]'",
    "pygame": "pip install 'headrace[render]'",
    "JAX": "pip install 'gymnasium[jax]'",
    "jax": "pip install 'gymnasium[jax]'",
    "envpool": "pip install envpool",
    "ale_py": "pip install ale-py",
    "minigrid": "pip install minigrid",
}
"""How to get what an environment may lack; the key occurs in the message of the error."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an id stands for: a registered spec, or a callable."""

    registered: gym.envs.registration.EnvSpec | None
    factory: Callable[..., Any] | None


def make_environment(config: EnvironmentConfig) -> Environment:
    """One environment, with its registered time limit and the configured wrappers.

    Gymnasium's checker and order-enforcing wrappers are left out: data is validated for every step
    anyway, and lanes always reset before they step.

    Raises:
        ConfigurationError: Unknown id, a missing dependency, or arguments that don't fit; each problem
            starts with its dotted path.
    """
    recipe = resolve(config)
    environment = _build(config, recipe)
    for index, text in enumerate(config.wrappers):
        path = f"environment.wrappers.{index}"
        wrapper = load_callable(text, path)
        try:
            environment = wrapper(environment)
        except (Exception, SystemExit) as error:
            raise ConfigurationError([f"{path}: {text} failed: {describe(error)}."]) from error
    if not isinstance(environment, gym.Env):
        raise ConfigurationError(
            [f"environment.wrappers: they give a {type(environment).__name__}, not a gymnasium.Env."]
        )
    return environment


def probe(config: EnvironmentConfig) -> EnvironmentSpec:
    """The spaces of the environment, found by making one and closing it.

    Raises:
        ConfigurationError: As :func:`make_environment`; also for a space that can't be handled.
    """
    if config.vectorization in ("native", "envpool"):
        from headrace.envs.native import make_vector

        vector = make_vector(config, 1, seed=0)
        observation, action = vector.single_observation_space, vector.single_action_space
        vector.close()
    else:
        environment = make_environment(config)
        observation = getattr(environment, "observation_space", None)
        action = getattr(environment, "action_space", None)
        environment.close()
    for name, space in (("observation_space", observation), ("action_space", action)):
        if not isinstance(space, gym.Space):
            raise ConfigurationError([f"environment.id: {config.id} has no {name}."])
    return EnvironmentSpec(
        config.id, spec_of(observation, name="observation space"), spec_of(action, name="action space")
    )


def resolve(config: EnvironmentConfig) -> Recipe:
    """Find out what ``environment.id`` stands for; ConfigurationError with a suggestion if nothing."""
    module_name, colon, name = config.id.partition(":")
    if not colon:
        found = gym.registry.get(config.id)
        if found is None:
            raise ConfigurationError([_unknown_id(config.id, list(gym.registry))])
        return Recipe(found, None)
    module = import_module(module_name, "environment.id")
    found = gym.registry.get(name)
    if found is not None:
        return Recipe(found, None)
    factory = getattr(module, name, None)
    if callable(factory):
        return Recipe(None, factory)
    candidates = [key for key in vars(module) if not key.startswith("_")] + list(gym.registry)
    raise ConfigurationError(
        [
            f"environment.id: {module_name} has no environment or factory {name!r}"
            f"{did_you_mean(name, candidates)}"
        ]
    )


def load_callable(text: str, path: str) -> Callable[..., Any]:
    """The object ``module:name``; ConfigurationError that starts with ``path`` if there is none."""
    module_name, colon, name = text.partition(":")
    if not colon or not name:
        raise ConfigurationError([f"{path}: {text!r} must be written as module:callable."])
    module = import_module(module_name, path)
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigurationError(
            [f"{path}: {module_name} has no callable {name!r}{did_you_mean(name, list(vars(module)))}"]
        )
    return found  # type: ignore[no-any-return]


def import_module(name: str, path: str) -> Any:
    """Import a module that the configuration names; ConfigurationError that starts with ``path``."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            sentence = f"there is no module {name!r} on the Python path{_extra(name)}."
        else:
            sentence = f"importing {name!r} failed: {describe(error)}{_extra(str(error))}."
        raise ConfigurationError([f"{path}: {sentence}"]) from error
    except (Exception, SystemExit) as error:
        raise ConfigurationError([f"{path}: importing {name!r} failed: {describe(error)}."]) from error


def describe(error: BaseException) -> str:
    """An exception as one line: its type and message."""
    message = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def did_you_mean(word: str, candidates: list[str]) -> str:
    """The end of a sentence: ``"; did you mean 'x'?"`` for the closest candidate, else a full stop."""
    folded = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]!r}?" if close else "."


def refuse(config: EnvironmentConfig, target: Callable[..., Any], error: BaseException) -> ConfigurationError:
    """Why an environment could not be made, as a configuration error."""
    if isinstance(error, gym.error.DependencyNotInstalled | ImportError):
        sentence = f"environment.id: {config.id} needs what is not installed: {describe(error)}"
        return ConfigurationError([f"{sentence}{_extra(str(error))}."])
    if isinstance(error, TypeError):
        misfit = _argument_misfit(target, config.kwargs)
        if misfit:
            return ConfigurationError([f"environment.kwargs: {config.id} {misfit}"])
    where = "environment.kwargs" if config.kwargs else "environment.id"
    return ConfigurationError([f"{where}: {config.id} could not be made: {describe(error)}."])


def _build(config: EnvironmentConfig, recipe: Recipe) -> Any:
    try:
        if recipe.registered is not None:
            spec = copy.deepcopy(recipe.registered)
            spec.order_enforce = False
            return gym.make(spec, disable_env_checker=True, **copy.deepcopy(config.kwargs))
        assert recipe.factory is not None
        environment = recipe.factory(**copy.deepcopy(config.kwargs))
    except (Exception, SystemExit) as error:
        raise refuse(config, _constructor(recipe), error) from error
    if not isinstance(environment, gym.Env):
        raise ConfigurationError(
            [f"environment.id: {config.id} gives a {type(environment).__name__}, not a gymnasium.Env."]
        )
    return environment


def _constructor(recipe: Recipe) -> Callable[..., Any]:
    """What the keyword arguments go to, for the words of an error."""
    if recipe.factory is not None:
        return recipe.factory
    assert recipe.registered is not None
    entry = recipe.registered.entry_point
    if not isinstance(entry, str):
        return entry or gym.make
    try:
        return gym.envs.registration.load_env_creator(entry)
    except Exception:
        return gym.make


def _argument_misfit(target: Callable[..., Any], kwargs: dict[str, Any]) -> str:
    """What of ``kwargs`` doesn't fit the signature of ``target``, in words; empty if all fits."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return ""
    parameters = signature.parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return ""
    for key in kwargs:
        if key not in parameters:
            takes = ", ".join(parameters) or "none"
            return f"takes no argument {key!r} (it takes: {takes}){did_you_mean(key, list(parameters))}"
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        return f"{error}."
    return ""


def _unknown_id(name: str, known: list[str]) -> str:
    sentence = f"environment.id: no environment {name!r} is registered{did_you_mean(name, known)}"
    if name.startswith("ALE/"):
        return f"{sentence} For Atari: pip install ale-py, and write 'ale_py:{name}'."
    if sentence.endswith("?"):
        return sentence
    return f"{sentence} Write module:id if a module must be imported first."


def _extra(message: str) -> str:
    for word, command in EXTRAS.items():
        if word in message:
            return f"; {command}"
    return ""
