"""EnvPool as a vector, imported only if the configuration asks for it.

EnvPool resets ended lanes in the next step, takes its seed when it is made (an int32), and can reset
single lanes; see https://envpool.readthedocs.io.
"""

from __future__ import annotations

import importlib
from typing import Any

from headrace.config.sections import EnvironmentConfig
from headrace.envs.factory import describe, did_you_mean
from headrace.errors import ConfigurationError


def make_envpool(config: EnvironmentConfig, num_lanes: int, *, seed: int) -> Any:
    """An EnvPool of ``num_lanes`` with Gymnasium's interface.

    Raises:
        ConfigurationError: EnvPool isn't installed, doesn't know the id, or refuses the arguments.
    """
    try:
        envpool = importlib.import_module("envpool")
    except Exception as error:  # its import reads assets, which may be missing too
        raise ConfigurationError(
            [
                "environment.vectorization: envpool needs EnvPool, which can't be imported "
                f"({describe(error)}); pip install envpool."
            ]
        ) from error
    known = list(envpool.list_all_envs())
    if config.id not in known:
        raise ConfigurationError(
            [f"environment.id: EnvPool has no environment {config.id!r}{did_you_mean(config.id, known)}"]
        )
    kwargs = dict(config.kwargs)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    try:
        return envpool.make_gymnasium(config.id, num_envs=num_lanes, seed=seed, **kwargs)
    except Exception as error:
        raise ConfigurationError(
            [f"environment.kwargs: EnvPool could not make {config.id}: {describe(error)}."]
        ) from error
