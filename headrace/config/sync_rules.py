"""Rules about several learners: which modes make sense for which algorithm, and which settings together."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.config.algorithms import SingleStepConfig
from headrace.config.choices import in_rounds, is_off_policy
from headrace.config.rule import RuleProblem, problem
from headrace.config.sections import Config


def sync_rules(config: Config) -> Iterator[RuleProblem]:
    """All broken rules of ``sync`` and ``learner.count``."""
    yield from _exchange_rules(config)
    yield from _round_rules(config)
    yield from _lag_rules(config)
    yield from _tuning_rules(config)
    yield from _group_rules(config)
    yield from _all_reduce_rules(config)


def _exchange_rules(config: Config) -> Iterator[RuleProblem]:
    algorithm, sync = config.algorithm, config.sync
    if sync.exchange == "gradients" and not isinstance(algorithm, SingleStepConfig):
        yield problem(
            f"sync.exchange: an update of {algorithm.name} is many gradient steps, each from where the one "
            "before has led, so its gradients can't be handed in together; use `changes`, or sync.mode "
            "`all_reduce`, which averages each of them.",
            "algorithm.name",
        )
    if not is_off_policy(config) and config.sampler.count < config.learner.count:
        yield problem(
            f"learner.count: {config.learner.count} learners need as many samplers at least, "
            f"each has its own; sampler.count is {config.sampler.count}.",
            "sampler.count",
        )


def _round_rules(config: Config) -> Iterator[RuleProblem]:
    sync, count = config.sync, config.learner.count
    parties = count // (sync.group_size or 1)
    if sync.quorum is not None and sync.quorum > parties:
        whom = "learners" if sync.group_size is None else "groups"
        yield problem(
            f"sync.quorum: {sync.quorum} of {parties} {whom} can never be.",
            "learner.count",
            "sync.group_size",
        )
    if sync.quorum is not None and sync.mode in ("async", "all_reduce"):
        reason = "of one" if sync.mode == "async" else "of all"
        yield problem(
            f"sync.quorum: a round of sync.mode `{sync.mode}` is {reason}; leave it empty.", "sync.mode"
        )


def _lag_rules(config: Config) -> Iterator[RuleProblem]:
    sync, count = config.sync, config.learner.count
    if sync.max_lag is not None and sync.full_weight_lag > sync.max_lag:
        yield problem(
            f"sync.full_weight_lag: {sync.full_weight_lag} is more than sync.max_lag = {sync.max_lag}, "
            "from where on contributions are dropped.",
            "sync.max_lag",
        )
    if is_off_policy(config) or count == 1:
        return
    least = {"async": count, "soft_sync": 2}.get(sync.mode, 0)
    if sync.max_policy_lag < least:
        yield problem(
            f"sync.max_policy_lag: {sync.max_policy_lag} is too little for sync.mode `{sync.mode}` and "
            f"{count} learners: the versions of the others age a learner's fragments too; at least {least}.",
            "sync.mode",
            "learner.count",
        )


def _tuning_rules(config: Config) -> Iterator[RuleProblem]:
    if config.sync.local_steps == "auto" and not in_rounds(config):
        yield problem(
            "sync.local_steps: auto weighs learners that wait for rounds against learners that drift apart; "
            "one learner does neither. Give learner.count more than 1, or a number.",
            "learner.count",
        )


def _group_rules(config: Config) -> Iterator[RuleProblem]:
    sync, count = config.sync, config.learner.count
    if sync.group_size is None or sync.mode == "all_reduce":
        return
    if count % sync.group_size or count == sync.group_size:
        yield problem(
            f"sync.group_size: {count} learners are no groups of {sync.group_size}; learner.count must be a "
            "multiple of it, and more (for one group of all use sync.mode `all_reduce`).",
            "learner.count",
        )
    if sync.exchange == "gradients":
        yield problem(
            "sync.exchange: learners of a group step by themselves, along gradients averaged among them; "
            "what a group hands in are changes.",
            "sync.group_size",
        )


def _all_reduce_rules(config: Config) -> Iterator[RuleProblem]:
    sync = config.sync
    if sync.mode != "all_reduce":
        return
    for name, value, default in (
        ("exchange", sync.exchange, "auto"),
        ("local_steps", sync.local_steps, None),
        ("transport_dtype", sync.transport_dtype, "float32"),
        ("group_size", sync.group_size, None),
    ):
        if value != default:
            yield problem(
                f"sync.{name}: {value} is about rounds; with sync.mode `all_reduce` learners average every "
                "gradient among themselves.",
                "sync.mode",
            )
