"""Off-policy training in one process, on one screen: the reference for samplers, replay and learner apart.

The same lanes, actors, rollouts, hot shards and algorithm as the services use, taking turns: every sampler
makes one fragment with the newest parameters, then the learner takes as many gradient steps as
``replay.samples_per_insert`` asks for. Also the shortest way to see how an off-policy run fits together.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from headrace.config.choices import off_policy
from headrace.config.digest import config_digest
from headrace.config.sections import Config
from headrace.envs.factory import probe
from headrace.envs.lanes import Lanes
from headrace.envs.spec import EnvironmentSpec
from headrace.nets.actor import make_actor
from headrace.replay.shard import HotShard
from headrace.replay.weights import importance_weights, law, quotas
from headrace.rl.algorithm import make_replay_algorithm
from headrace.rl.initial_priorities import SMALLEST, initial_priorities
from headrace.rollout import Rollout
from headrace.types import EPISODE_RETURN, PolicyVersion, ReplayBatch, Sample, SamplerIdentity


class PlainSampler:
    """One sampler with its hot shard. Seeds are those of sampler ``index`` in its first incarnation."""

    def __init__(self, config: Config, spec: EnvironmentSpec, index: int) -> None:
        algorithm, environment = off_policy(config), config.environment
        lane_seeds, action_seeds, draw_seeds = np.random.SeedSequence(
            config.run.seed, spawn_key=(index, 0)
        ).spawn(3)
        self.actor = make_actor(config, spec, sampler_index=index)
        self.lanes = Lanes(
            environment,
            config.validation,
            spec=spec,
            num_lanes=environment.lanes,
            seed_sequence=lane_seeds,
            max_consecutive_faults=config.sampler.max_consecutive_faults,
            restart_backoff_s=config.sampler.restart_backoff_s,
        )
        self.rollout = Rollout(
            lanes=self.lanes,
            actor=self.actor,
            spec=spec,
            sampler=SamplerIdentity(f"sampler-{index}", 0),
            fragment_length=config.sampler.fragment_length,
            config_digest=config_digest(config),
            rng=np.random.default_rng(action_seeds),
            normalize_observation=False,
        )
        self.shard = HotShard(
            config.replay,
            n_step=algorithm.n_step,
            gamma=algorithm.gamma,
            rng=np.random.default_rng(draw_seeds),
        )


class PlainReplayLoop:
    """``sampler.count`` samplers and one learner taking turns. Deterministic in ``run.seed``."""

    def __init__(self, config: Config) -> None:
        """ConfigurationError if the environment or the policy can't be made."""
        self.config = config
        self._algorithm_config = off_policy(config)
        self.spec = probe(config.environment)
        self.algorithm = make_replay_algorithm(config, self.spec)
        self.samplers = [PlainSampler(config, self.spec, index) for index in range(config.sampler.count)]
        self._rng = np.random.default_rng(np.random.SeedSequence(config.run.seed).spawn(3)[2])
        self._owed = 0.0  # samples that insertions have earned and no update has taken
        self.num_updates = 0
        self.num_env_steps = 0
        self.recent_returns: deque[float] = deque(maxlen=100)

    def turn(self) -> list[dict[str, float]]:
        """One fragment of each sampler, then every update that is due; returns the metrics of each."""
        for sampler in self.samplers:
            self._collect(sampler)
        metrics, needed = [], self._algorithm_config.gradient_steps * self._algorithm_config.batch_size
        while self._owed >= needed:
            self._owed -= needed
            metrics.append(self._update())
        return metrics

    def _collect(self, sampler: PlainSampler) -> None:
        sampler.actor.load(self.algorithm.acting_parameters())
        fragment = sampler.rollout.run(PolicyVersion(0, self.num_updates))
        assert fragment is not None, "a rollout that nobody stops is never empty"
        algorithm, replay = self._algorithm_config, self.config.replay
        sampler.shard.insert(
            fragment, initial_priorities(fragment, gamma=algorithm.gamma, n_step=algorithm.n_step)
        )
        self.num_env_steps += fragment.num_transitions
        self.recent_returns.extend(fragment.columns[EPISODE_RETURN].tolist())
        if self.num_env_steps >= replay.min_size_to_sample:
            # Without a ratio to hold, as often as it is learned from in classic deep Q-learning: every
            # fourth step one minibatch.
            ratio = replay.samples_per_insert or algorithm.batch_size / 4
            self._owed += ratio * fragment.num_transitions

    def _update(self) -> dict[str, float]:
        samples = self._draw(self._algorithm_config.gradient_steps * self._algorithm_config.batch_size)
        drawn = [sample for _, sample in samples]
        probabilities = np.concatenate([sample.probabilities for sample in drawn])
        total = sum(sampler.shard.stats().count for sampler in self.samplers)
        # In random order: a minibatch must not come from one shard alone.
        order = self._rng.permutation(len(probabilities))
        batch = ReplayBatch(
            columns={
                name: np.concatenate([sample.columns[name] for sample in drawn])[order]
                for name in drawn[0].columns
            },
            importance_weights=importance_weights(
                probabilities, total, self.config.replay.importance_sampling_exponent
            )[order],
            num_gradient_steps=self._algorithm_config.gradient_steps,
        )
        learned = self.algorithm.learn(batch, env_steps=self.num_env_steps, progress=self.progress)
        self.num_updates += 1
        priorities = np.empty_like(learned.td_errors)
        priorities[order] = learned.td_errors + np.float32(SMALLEST)
        first = 0
        for shard, sample in samples:
            shard.update_priorities(sample.keys, priorities[first : first + sample.size])
            shard.set_version(self.num_updates)
            first += sample.size
        return learned.metrics

    def _draw(self, num_items: int) -> list[tuple[HotShard, Sample]]:
        """Items from all shards, each with its probability over all of them."""
        shares = law([sampler.shard.stats().mass for sampler in self.samplers])
        drawn: list[tuple[HotShard, Sample]] = []
        for sampler, share, quota in zip(
            self.samplers, shares, quotas(shares, num_items, self._rng), strict=True
        ):
            sample = sampler.shard.sample(int(quota)) if quota else None
            if sample is not None:
                own = Sample(sample.keys, sample.probabilities * share, sample.versions, sample.columns)
                drawn.append((sampler.shard, own))
        return drawn

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
        for sampler in self.samplers:
            sampler.lanes.close()
