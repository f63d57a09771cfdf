"""What a run has learned, taken up again: to evaluate it, to film it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.checkpoint import CheckpointDirectory
from headrace.config.sections import Config, EnvironmentConfig
from headrace.envs.factory import make_environment, probe
from headrace.envs.lanes import Lanes
from headrace.envs.spec import EnvironmentSpec
from headrace.errors import ConfigurationError, HeadraceError
from headrace.evaluation import EvaluationResult, evaluate
from headrace.local.attach import require_run
from headrace.local.run_folder import RunFolder
from headrace.nets.actor import Actor, make_actor
from headrace.types import Array, PolicyVersion

_SPAWN_KEY = 2**31 + 1  # apart from the seeds of every sampler and of the run's own evaluator


@dataclass(frozen=True, slots=True)
class Trained:
    """A checkpoint of a run with everything that is needed to act with it."""

    config: Config
    spec: EnvironmentSpec
    actor: Actor
    version: PolicyVersion
    env_steps: int

    def evaluate(self, episodes: int, seed: int) -> EvaluationResult:
        """Act greedily for so many episodes in fresh environments, seeded from ``seed``."""
        lanes = Lanes(
            self.config.environment,
            self.config.validation,
            spec=self.spec,
            num_lanes=min(self.config.evaluation.lanes, episodes),
            seed_sequence=np.random.SeedSequence(seed, spawn_key=(_SPAWN_KEY,)),
            max_consecutive_faults=self.config.sampler.max_consecutive_faults,
            restart_backoff_s=self.config.sampler.restart_backoff_s,
            clock=time.monotonic,
        )
        try:
            result = evaluate(lanes, self.actor.greedy, episodes=episodes)
        finally:
            lanes.close()
        assert result is not None  # nothing stops it
        return result

    def film(self, episodes: int, seed: int, *, on_frame: Callable[[Array], None]) -> list[float]:
        """Act greedily in one environment that renders; hands over RGB frames ``[H, W, 3]`` uint8.

        Returns the episodes' returns. HeadraceError with a sentence if the environment can't render.
        """
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws into memory, without a screen
        environment = make_environment(rendering(self.config.environment))
        cap = self.config.environment.max_episode_steps
        seeds = np.random.SeedSequence(seed, spawn_key=(_SPAWN_KEY,)).generate_state(episodes)
        try:
            return [self._film_one(environment, int(one), cap, on_frame) for one in seeds]
        finally:
            environment.close()

    def _film_one(
        self, environment: Any, seed: int, cap: int | None, on_frame: Callable[[Array], None]
    ) -> float:
        value, _ = environment.reset(seed=seed)
        total, steps, over = 0.0, 0, False
        on_frame(self._frame(environment))
        while not over:
            leaves = {path: array[None] for path, array in self.spec.observation.flatten_one(value).items()}
            chosen = {path: array[0] for path, array in self.actor.greedy(leaves).items()}
            value, reward, terminated, truncated, _ = environment.step(self.spec.action.unflatten(chosen))
            total, steps = total + float(reward), steps + 1
            over = bool(terminated or truncated) or (cap is not None and steps >= cap)
            on_frame(self._frame(environment))
        return total

    def _frame(self, environment: Any) -> Array:
        try:
            frame = environment.render()
        except Exception as error:
            raise HeadraceError(f"{self.config.environment.id} could not be rendered: {error}") from error
        picture = np.asarray(frame)
        if picture.ndim != 3 or picture.dtype != np.uint8:
            raise HeadraceError(
                f"{self.config.environment.id} can't be filmed: its render() gives no RGB picture "
                f"(got {type(frame).__name__})"
            )
        return picture


def load_trained(folder: RunFolder, checkpoint: str) -> Trained:
    """Load ``best``, ``latest`` or a version number; where there is no best, the latest.

    Raises ConfigurationError if the folder is no run or there is no such checkpoint, HeadraceError if it
    can't be read.
    """
    config = require_run(folder)
    directory = CheckpointDirectory(folder.path)
    if checkpoint == "best" and directory.best() is None:
        checkpoint = "latest"
    try:
        path = directory.resolve(checkpoint)
    except HeadraceError as error:
        raise ConfigurationError([f"--checkpoint: {error}"]) from error
    record = directory.load(path)
    spec = probe(config.environment)
    actor = make_actor(config, spec)
    try:
        actor.load(record.parameters())
    except (KeyError, ValueError) as error:
        raise HeadraceError(f"checkpoint {record.version} doesn't fit this network: {error}") from error
    return Trained(config, spec, actor, record.version, record.report.env_steps)


def rendering(environment: EnvironmentConfig) -> EnvironmentConfig:
    """The same environment, asked to render RGB pictures; one of it."""
    kwargs = {**environment.kwargs, "render_mode": "rgb_array"}
    return environment.model_copy(update={"kwargs": kwargs, "vectorization": "sync"})
