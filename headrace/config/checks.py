"""Rules between fields: what each allows by itself, but not together. Refused before anything starts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headrace.config.algorithms import ClippedConfig, DqnConfig, VtraceConfig
from headrace.config.choices import batch_steps_of_exchange, is_off_policy, off_policy, on_policy
from headrace.config.rule import RuleProblem, problem
from headrace.config.sections import Config
from headrace.config.sync_rules import sync_rules
from headrace.errors import ConfigurationError
from headrace.flow.watermarks import Watermarks
from headrace.replay.limiter import deadlocks

if TYPE_CHECKING:
    from headrace.envs.spec import EnvironmentSpec, LeafSpec, SpaceSpec

EPISODE_STEPS = 4
"""Shortest average episode, in steps, for which a fragment surely fits :func:`fragment_bytes`."""

_MAX_LAYER_BYTES = 2**31  # twice that with the value's tower, six times with optimizer and gradients

LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def check(config: Config) -> list[RuleProblem]:
    """All broken rules of a configuration, in the order of its sections."""
    return [
        *_run_rules(config),
        *_environment_rules(config),
        *_policy_rules(config),
        *_schedule_rules(config),
        *(_off_policy_rules(config) if is_off_policy(config) else _on_policy_rules(config)),
        *_stream_rules(config),
        *_leveling_rules(config),
        *sync_rules(config),
        *_replay_rules(config),
        *_process_rules(config),
    ]


def _run_rules(config: Config) -> Iterator[RuleProblem]:
    stop = config.run.stop
    if (stop.env_steps, stop.updates, stop.wall_s, stop.return_) == (None, None, None, None):
        yield problem("run.stop: needs at least one of env_steps, updates, wall_s and return.")
    if any(not (letter.isalnum() or letter in "._- ") for letter in config.run.name):
        yield problem("run.name: becomes part of a folder's name; use letters, digits, spaces and `._-`.")


def _environment_rules(config: Config) -> Iterator[RuleProblem]:
    environment = config.environment
    if not environment.id.strip():
        yield problem("environment.id: must not be empty.")
    for index, wrapper in enumerate(environment.wrappers):
        if not _is_reference(wrapper):
            yield problem(f"environment.wrappers.{index}: must be `module:callable`, not {wrapper!r}.")
    if environment.autoreset != "auto" and environment.vectorization not in ("native", "envpool"):
        yield problem(
            f"environment.autoreset: only a native vector resets by itself; with vectorization "
            f"`{environment.vectorization}` leave it at `auto`.",
            "environment.vectorization",
        )
    network = config.policy.network
    if network not in ("auto", "mlp", "cnn") and not _is_reference(network):
        yield problem(f"policy.network: must be auto, mlp, cnn or `module:factory`, not {network!r}.")


def _policy_rules(config: Config) -> Iterator[RuleProblem]:
    hidden = config.policy.hidden
    nbytes = sum(4 * before * after for before, after in itertools.pairwise(hidden))
    if nbytes > _MAX_LAYER_BYTES:
        yield problem(
            f"policy.hidden: weights between layers of {hidden} units would take {nbytes / 2**30:,.0f} GiB; "
            f"at most {_MAX_LAYER_BYTES // 2**30} are allowed."
        )


def _is_reference(text: str) -> bool:
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _schedule_rules(config: Config) -> Iterator[RuleProblem]:
    stop = config.run.stop
    if (
        config.algorithm.learning_rate_schedule == "linear"
        and stop.env_steps is None
        and stop.updates is None
    ):
        yield problem(
            "algorithm.learning_rate_schedule: linear falls to zero at run.stop.env_steps or "
            "run.stop.updates; set one of them.",
            "run.stop.env_steps",
            "run.stop.updates",
        )


def _on_policy_rules(config: Config) -> Iterator[RuleProblem]:
    algorithm, lanes, length = on_policy(config), config.environment.lanes, config.sampler.fragment_length
    if algorithm.batch_steps % (lanes * length):
        yield problem(
            f"algorithm.batch_steps: {algorithm.batch_steps} is no multiple of environment.lanes x "
            f"sampler.fragment_length = {lanes} x {length} = {lanes * length}. "
            f"Did you mean {_nearest_multiple(algorithm.batch_steps, lanes * length)}?",
            "environment.lanes",
            "sampler.fragment_length",
        )
    if isinstance(algorithm, ClippedConfig) and algorithm.minibatch_size > algorithm.batch_steps:
        yield problem(
            f"algorithm.minibatch_size: {algorithm.minibatch_size} is more than a whole batch "
            f"(algorithm.batch_steps = {algorithm.batch_steps}).",
            "algorithm.batch_steps",
        )
    if isinstance(algorithm, VtraceConfig) and algorithm.c_bar > algorithm.rho_bar:
        yield problem(
            f"algorithm.c_bar: {algorithm.c_bar:g} is more than algorithm.rho_bar = {algorithm.rho_bar:g}; "
            "errors would be carried back by more than they count.",
            "algorithm.rho_bar",
        )


def _off_policy_rules(config: Config) -> Iterator[RuleProblem]:
    algorithm, length = off_policy(config), config.sampler.fragment_length
    if config.policy.normalize_observation:
        yield problem(
            f"policy.normalize_observation: not with {algorithm.name}. The normalizer grows by what whole "
            "fragments add, in order, and replay gives single transitions, again and again; scale the "
            "observation in a wrapper instead.",
            "algorithm.name",
        )
    if algorithm.n_step > length:
        yield problem(
            f"algorithm.n_step: {algorithm.n_step} steps reach past the next fragment; "
            f"sampler.fragment_length is {length}.",
            "sampler.fragment_length",
        )
    for sentence in deadlocks(
        samples_per_insert=config.replay.samples_per_insert,
        min_size_to_sample=config.replay.min_size_to_sample,
        max_times_sampled=config.replay.max_times_sampled,
    ):
        yield problem(sentence, "replay.samples_per_insert")
    if config.replay.min_size_to_sample < algorithm.batch_size:
        yield problem(
            f"replay.min_size_to_sample: {config.replay.min_size_to_sample} transitions are fewer than one "
            f"gradient step learns from (algorithm.batch_size = {algorithm.batch_size}).",
            "algorithm.batch_size",
        )
    if isinstance(algorithm, DqnConfig) and algorithm.epsilon_final > algorithm.epsilon_initial:
        yield problem(
            f"algorithm.epsilon_final: {algorithm.epsilon_final:g} is more than algorithm.epsilon_initial = "
            f"{algorithm.epsilon_initial:g}.",
            "algorithm.epsilon_initial",
        )


def _nearest_multiple(value: int, unit: int) -> int:
    return max(unit, (value + unit // 2) // unit * unit)


def _stream_rules(config: Config) -> Iterator[RuleProblem]:
    stream, network = config.stream, config.network
    if stream.low_watermark >= stream.high_watermark:
        yield problem(
            f"stream.low_watermark: {stream.low_watermark:g} must be below stream.high_watermark = "
            f"{stream.high_watermark:g}.",
            "stream.high_watermark",
        )
    if stream.codec == "shared_memory" and network.host not in LOCAL_HOSTS:
        yield problem(
            f"stream.codec: shared_memory needs both ends on one node, but network.host is `{network.host}`.",
            "network.host",
        )


def _leveling_rules(config: Config) -> Iterator[RuleProblem]:
    if config.sampler.leveling == "off":
        return
    if is_off_policy(config):
        yield problem(
            f"sampler.leveling: not with {config.algorithm.name}, whose learner draws from replay and waits "
            "for no sampler; leave it at `off`.",
            "algorithm.name",
        )
    elif config.sync.lag_control == "drop":
        yield problem(
            "sampler.leveling: with sync.lag_control `drop` the learner waits for no sampler; leave it at "
            "`off`, or use `pace`.",
            "sync.lag_control",
        )


def _replay_rules(config: Config) -> Iterator[RuleProblem]:
    replay = config.replay
    if replay.remover != "fifo" and replay.cold != "off":
        yield problem(
            f"replay.remover: {replay.remover} is for the hot tier alone, and the cold tier takes over the "
            "oldest chunks first; set replay.cold to `off`.",
            "replay.cold",
        )
    if replay.selector in ("fifo", "lifo") and replay.max_times_sampled is None:
        yield problem(
            f"replay.selector: {replay.selector} draws the same items for ever unless "
            "replay.max_times_sampled says when an item leaves.",
            "replay.max_times_sampled",
        )


def _process_rules(config: Config) -> Iterator[RuleProblem]:
    network, restart = config.network, config.restart
    learner_ports = range(network.learner_port, network.learner_port + config.learner.count)
    if network.learner_port and network.paramserver_port in learner_ports:
        yield problem(
            f"network.learner_port: {network.paramserver_port} is the paramserver's port already.",
            "network.paramserver_port",
            "learner.count",
        )
    # paramserver, learners, samplers, evaluator and relays take one metrics port each, counted upward.
    relays = config.paramserver.relays
    last_port = network.metrics_port + config.learner.count + config.sampler.count + relays + 1
    if network.metrics_port and last_port > 65535:
        yield problem(
            f"network.metrics_port: {network.metrics_port} "
            f"leaves no ports for {config.sampler.count} samplers.",
            "sampler.count",
        )
    yield from _watcher_rules(config)
    if config.sampler.max_count is not None and config.sampler.max_count < config.sampler.count:
        yield problem(
            f"sampler.max_count: {config.sampler.max_count} is less than sampler.count = "
            f"{config.sampler.count}.",
            "sampler.count",
        )
    if restart.backoff_s > restart.max_backoff_s:
        yield problem(
            f"restart.backoff_s: {restart.backoff_s:g} is longer than restart.max_backoff_s = "
            f"{restart.max_backoff_s:g}.",
            "restart.max_backoff_s",
        )


def _watcher_rules(config: Config) -> Iterator[RuleProblem]:
    """Room for everybody who watches one server: the paramserver, or the relay with the most to do."""
    settings = config.paramserver
    watchers = max(config.sampler.count, config.sampler.max_count or 0) + config.evaluation.enabled
    if not settings.relays:
        if watchers > settings.max_watchers:
            yield problem(
                f"paramserver.max_watchers: {settings.max_watchers} is too few: samplers and evaluator "
                f"are {watchers}, and each of them watches.",
                "sampler.count",
                "sampler.max_count",
                "evaluation.enabled",
            )
        return
    relays_of_one = min(settings.relays, settings.relay_fan_out or settings.relays)
    of_a_relay = -(-watchers // settings.relays) + (relays_of_one if settings.relay_fan_out else 0)
    if max(relays_of_one, of_a_relay) > settings.max_watchers:
        yield problem(
            f"paramserver.max_watchers: {settings.max_watchers} is too few: with paramserver.relays = "
            f"{settings.relays} up to {relays_of_one} relays watch the paramserver, and {of_a_relay} "
            "processes (samplers, evaluator, other relays) a relay.",
            "paramserver.relays",
            "sampler.count",
            "sampler.max_count",
        )


def fragment_bytes(config: Config, spec: EnvironmentSpec) -> int:
    """Bytes that one full fragment may take: the unit in which credit is granted.

    Columns as in :mod:`headrace.types`. Ended episodes have rows of their own; room for one in every
    ``EPISODE_STEPS`` steps is counted. A fragment of even shorter episodes exceeds this and waits for more
    credit than one unit.
    """
    observation, action = _row_bytes(spec.observation), _row_bytes(spec.action)
    # Reward, log probability, value and, with DQN, the action's value (float32);
    # terminated, truncated, valid (bool).
    numbers = 4 if isinstance(config.algorithm, DqnConfig) else 3
    step = observation + action + numbers * 4 + 3 * 1
    # Bootstrap observation and value, lane_seed, lane_episode, lane_step.
    lane = observation + 4 + 8 + 8 + 4
    # Final index, observation and value, return and length of the episode.
    end = 4 + observation + 4 + 8 + 4
    lanes = config.environment.lanes
    steps = lanes * config.sampler.fragment_length
    normalizer = 0
    if config.policy.normalize_observation:
        # Count, mean and M2 in float64.
        normalizer = sum(8 + 16 * _size(leaf) for leaf in spec.observation.leaves)
    return steps * step + lanes * lane + -(-steps // EPISODE_STEPS) * end + normalizer


def _row_bytes(space: SpaceSpec) -> int:
    return sum(_size(leaf) * np.dtype(leaf.dtype).itemsize for leaf in space.leaves)


def _size(leaf: LeafSpec) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64))


def check_with_spaces(config: Config, spec: EnvironmentSpec) -> None:
    """Rules that need the environment's spaces; called once the environment has been probed.

    One batch must fit below the line at which a throttled receiver grants again, and with it a fragment in
    the making for each sampler. With less, the learner would wait for fragments that it has no room for.
    What learns from replay gets no fragments through a stream; there the hot tiers (with the cold one, where
    a run can't be without it) must hold what is waited for before the first draw.

    Raises:
        ConfigurationError: a capacity is too small; names a value that works.
    """
    if is_off_policy(config):
        _check_replay_with_spaces(config, spec)
        return
    fragment = fragment_bytes(config, spec)
    least = _least_capacity(config, fragment)
    if least > config.stream.capacity_bytes:
        raise ConfigurationError(
            [
                f"stream.capacity_bytes: {config.stream.capacity_bytes} is too small for batches of "
                f"{_batch_fragments(config)} fragments of up to {fragment} bytes; the least is {least}."
            ]
        )


def _check_replay_with_spaces(config: Config, spec: EnvironmentSpec) -> None:
    replay, samplers, unit = config.replay, config.sampler.count, fragment_bytes(config, spec)
    transitions = config.environment.lanes * config.sampler.fragment_length
    # A shard makes room before it takes a fragment in, so it surely holds one less than fit.
    hot = max(0, replay.hot_capacity_bytes // unit - 1)
    cold = replay.cold_capacity_bytes // unit if replay.cold == "required" else 0
    wanted = -(-replay.min_size_to_sample // transitions)
    problems = deadlocks(
        samples_per_insert=replay.samples_per_insert,
        min_size_to_sample=replay.min_size_to_sample,
        max_times_sampled=replay.max_times_sampled,
        capacity=(samplers * hot + cold) * transitions,
        least_hot_bytes=(-(-(wanted - cold) // samplers) + 1) * unit,
    )
    if sentences := list(problems):
        raise ConfigurationError(sentences)


def _batch_fragments(config: Config) -> int:
    return batch_steps_of_exchange(config) // (config.environment.lanes * config.sampler.fragment_length)


def _least_capacity(config: Config, fragment: int) -> int:
    batch, samplers = _batch_fragments(config), config.sampler.count
    release = Watermarks(config.stream.high_watermark, config.stream.low_watermark).release
    return math.ceil(fragment * max(batch / release, batch + samplers))
