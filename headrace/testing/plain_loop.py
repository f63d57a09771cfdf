"""Training in one process, on one screen: what a distributed run in lockstep must equal, bit for bit.

The same lanes, actor, rollout, batches and algorithm as the services use, with nothing between them.
Also the shortest way to see how a training run fits together.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from headrace.config.choices import on_policy
from headrace.config.digest import config_digest
from headrace.config.sections import Config
from headrace.envs.factory import probe
from headrace.envs.lanes import Lanes
from headrace.nets.actor import make_actor
from headrace.rl.algorithm import make_algorithm
from headrace.rl.batch import stack_fragments
from headrace.rollout import Rollout
from headrace.types import EPISODE_RETURN, Batch, PolicyVersion, SamplerIdentity


class PlainLoop:
    """One sampler and one learner taking turns: every fragment has policy lag 0.

    Seeds are those of sampler ``sampler_index`` in its first incarnation.
    """

    def __init__(self, config: Config, *, sampler_index: int = 0, incarnation: int = 0) -> None:
        """ConfigurationError if the environment or the policy can't be made."""
        environment, sampler = config.environment, config.sampler
        self.config = config
        self.spec = probe(environment)
        self.algorithm = make_algorithm(config, self.spec)
        self.actor = make_actor(config, self.spec)
        lane_seeds, action_seeds = np.random.SeedSequence(
            config.run.seed, spawn_key=(sampler_index, incarnation)
        ).spawn(2)
        self._lanes = Lanes(
            environment,
            config.validation,
            spec=self.spec,
            num_lanes=environment.lanes,
            seed_sequence=lane_seeds,
            max_consecutive_faults=sampler.max_consecutive_faults,
            restart_backoff_s=sampler.restart_backoff_s,
        )
        self._rollout = Rollout(
            lanes=self._lanes,
            actor=self.actor,
            spec=self.spec,
            sampler=SamplerIdentity(f"sampler-{sampler_index}", incarnation),
            fragment_length=sampler.fragment_length,
            config_digest=config_digest(config),
            rng=np.random.default_rng(action_seeds),
            normalize_observation=config.policy.normalize_observation,
        )
        transitions = environment.lanes * sampler.fragment_length
        self._fragments_per_update = max(1, on_policy(config).batch_steps // transitions)
        self.num_updates = 0
        self.num_env_steps = 0
        self.recent_returns: deque[float] = deque(maxlen=100)

    def update(self) -> dict[str, float]:
        """Sample one batch with the newest parameters and learn from it; returns the algorithm's metrics."""
        batch = self.sample()
        metrics = self.algorithm.update(batch, progress=self.progress)
        self.num_updates += 1
        self.num_env_steps += batch.num_transitions
        return metrics

    def sample(self) -> Batch:
        """Act with the algorithm's present parameters until there is a batch for an update."""
        self.actor.load(self.algorithm.acting_parameters())
        version = PolicyVersion(0, self.num_updates)
        fragments = []
        for _ in range(self._fragments_per_update):
            fragment = self._rollout.run(version)
            assert fragment is not None, "a rollout that nobody stops is never empty"
            fragments.append(fragment)
            self.recent_returns.extend(fragment.columns[EPISODE_RETURN].tolist())
        return stack_fragments(fragments, [0] * len(fragments))

    @property
    def progress(self) -> float:
        """How far the run is, in [0, 1]: by environment steps, else by updates."""
        stop = self.config.run.stop
        if stop.env_steps is not None:
            return min(1.0, self.num_env_steps / stop.env_steps)
        if stop.updates is not None:
            return min(1.0, self.num_updates / stop.updates)
        return 0.0

    def close(self) -> None:
        """Close the environments."""
        self._lanes.close()
