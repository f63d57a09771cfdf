"""What the parameter server takes from the run's configuration and from its place in the run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.config.digest import config_digest, config_json
from headrace.config.process import ProcessConfig
from headrace.config.sections import Config, StopConfig
from headrace.errors import ConfigurationError
from headrace.rpc.handshake import Handshake


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one parameter server. ``evaluated``: an evaluator judges when the run is solved."""

    config: Config
    run_dir: Path
    run_id: str
    config_digest: str
    config_json: str
    stop: StopConfig
    evaluated: bool
    keep: int
    checkpoint_every: int
    max_watchers: int

    @classmethod
    def of(cls, config: Config, *, run_dir: Path, run_id: str) -> Settings:
        """Settings of a run in ``run_dir``."""
        return cls(
            config=config,
            run_dir=run_dir,
            run_id=run_id,
            config_digest=config_digest(config),
            config_json=config_json(config),
            stop=config.run.stop,
            evaluated=config.evaluation.enabled,
            keep=config.paramserver.keep,
            checkpoint_every=config.paramserver.checkpoint_every,
            max_watchers=config.paramserver.max_watchers,
        )

    @classmethod
    def from_process(cls, process: ProcessConfig) -> Settings:
        """Settings of this process. ConfigurationError without a run folder: versions must outlive it."""
        if process.run_dir is None:
            raise ConfigurationError(
                ["--run-dir: the paramserver needs one; versions and checkpoints must outlive the process."]
            )
        return cls.of(process.config, run_dir=process.run_dir, run_id=process.run_id)

    def handshake(self, peer: str) -> Handshake:
        """What this end says of itself; it has no environment of its own."""
        return Handshake(self.run_id, self.config_digest, peer=peer, config_json=self.config_json)
