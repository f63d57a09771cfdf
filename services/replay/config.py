"""What the cold tier takes from the run's configuration and from its place in the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.config.checks import fragment_bytes
from headrace.config.choices import off_policy
from headrace.config.process import ProcessConfig
from headrace.config.sections import Config
from headrace.envs.spec import EnvironmentSpec
from headrace.errors import ConfigurationError
from services.replay.reader import ColdTerms

_LEAST_FRAGMENTS = 8  # below that nothing older than the hot tiers would ever be kept


@dataclass(frozen=True, slots=True)
class ColdSettings:
    """Settings of one partition of the cold tier."""

    config: Config
    spec: EnvironmentSpec
    terms: ColdTerms
    redis_url: str
    run_dir: Path | None
    run_id: str
    partition: int
    session: str

    @classmethod
    def of(
        cls,
        config: Config,
        spec: EnvironmentSpec,
        *,
        redis_url: str,
        run_dir: Path | None,
        run_id: str,
        partition: int = 0,
        session: str = "",
    ) -> ColdSettings:
        """Settings of partition ``partition``. ConfigurationError if it is too small to be of use."""
        algorithm = off_policy(config)
        priorities = 4 * config.sampler.fragment_length * config.environment.lanes
        terms = ColdTerms(
            num_steps=config.sampler.fragment_length,
            num_lanes=config.environment.lanes,
            fragment_bytes=fragment_bytes(config, spec) + priorities,
            n_step=algorithm.n_step,
            gamma=algorithm.gamma,
        )
        least = _LEAST_FRAGMENTS * terms.fragment_bytes * config.replay.partitions
        if config.replay.cold_capacity_bytes < least:
            raise ConfigurationError(
                [
                    f"replay.cold_capacity_bytes: {config.replay.cold_capacity_bytes} bytes hold hardly any "
                    f"fragments of up to {terms.fragment_bytes} bytes; the least is {least}, or set "
                    "replay.cold to off."
                ]
            )
        return cls(config, spec, terms, redis_url, run_dir, run_id, partition, session)

    @classmethod
    def from_process(cls, process: ProcessConfig, spec: EnvironmentSpec) -> ColdSettings | None:
        """As the process was told; None: there is no cold tier. ConfigurationError if there must be one."""
        replay = process.config.replay
        if replay.cold == "off":
            return None
        if not process.redis:
            if replay.cold == "required":
                raise ConfigurationError(
                    ["replay.cold: required, but there is no Redis; set REDIS_URL or install redis-server"]
                )
            return None
        return cls.of(
            process.config,
            spec,
            redis_url=process.redis,
            run_dir=process.run_dir,
            run_id=process.run_id,
            partition=process.index,
            session=process.session,
        )
