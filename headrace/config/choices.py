"""Which half of the algorithms a configuration has chosen."""

from __future__ import annotations

from headrace.config.algorithms import ClippedConfig, OffPolicyConfig, OnPolicyConfig, SingleStepConfig
from headrace.config.sections import Config
from headrace.sync.tuning import CHOICES

_REDIS_HEADROOM_SHARE = 0.5
_REDIS_HEADROOM_BYTES = 64 * 2**20
_MOST_SAMPLERS = 64  # where nothing is said


def most_samplers(config: Config) -> int:
    """Samplers that there may be at the same time; more have to wait."""
    return config.sampler.max_count or max(_MOST_SAMPLERS, config.sampler.count)


def redis_max_memory_bytes(capacity_bytes: int) -> int:
    """``maxmemory`` of a Redis that is to hold ``capacity_bytes`` of compressed chunks.

    It is a fence, not the bound: the replay services evict by themselves, long before.
    """
    return int(capacity_bytes * (1 + _REDIS_HEADROOM_SHARE)) + _REDIS_HEADROOM_BYTES


def in_rounds(config: Config) -> bool:
    """Whether learners hand their work in to rounds at the paramserver, instead of one that publishes."""
    sync = config.sync
    return config.learner.count > 1 or sync.mode in ("soft_sync", "async") or sync.exchange != "auto"


def group_size(config: Config) -> int | None:
    """Learners that average gradients among themselves; None: each learner steps or hands in by itself."""
    if config.learner.count == 1:
        return None
    return config.learner.count if config.sync.mode == "all_reduce" else config.sync.group_size


def exchanges_gradients(config: Config) -> bool:
    """Whether what learners hand in to rounds are gradients; else changes of their parameters."""
    if group_size(config) is not None or config.sync.exchange == "changes":
        return False
    return isinstance(config.algorithm, SingleStepConfig)


def updates_per_exchange(config: Config, local_steps: int | None = None) -> int:
    """Updates a learner makes between two exchanges: as many as hold ``local_steps`` gradient steps.

    None: those of the configuration; where they are chosen by how the run goes, the most it may come to.
    """
    wanted = config.sync.local_steps if local_steps is None else local_steps
    if wanted is None:
        return 1
    return -(-(CHOICES[-1] if wanted == "auto" else wanted) // _steps_per_update(config))


def batch_steps_of_exchange(config: Config) -> int:
    """Most transitions between two exchanges of an on-policy learner; TypeError for an off-policy one."""
    return on_policy(config).batch_steps * updates_per_exchange(config)


def _steps_per_update(config: Config) -> int:
    """Gradient steps of a nominal update."""
    algorithm = config.algorithm
    if isinstance(algorithm, ClippedConfig):
        return algorithm.epochs * max(1, round(algorithm.batch_steps / algorithm.minibatch_size))
    return algorithm.gradient_steps if isinstance(algorithm, OffPolicyConfig) else 1


def is_off_policy(config: Config) -> bool:
    """Whether the algorithm learns from replay (DQN, DDPG, TD3, SAC) or from fragments as they come."""
    return isinstance(config.algorithm, OffPolicyConfig)


def on_policy(config: Config) -> OnPolicyConfig:
    """The section of an on-policy algorithm; TypeError if it is an off-policy one."""
    if not isinstance(config.algorithm, OnPolicyConfig):
        raise TypeError(f"{config.algorithm.name} learns from replay, not from fragments")
    return config.algorithm


def off_policy(config: Config) -> OffPolicyConfig:
    """The section of an off-policy algorithm; TypeError if it is an on-policy one."""
    if not isinstance(config.algorithm, OffPolicyConfig):
        raise TypeError(f"{config.algorithm.name} learns from fragments, not from replay")
    return config.algorithm
