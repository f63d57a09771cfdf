"""``python -P -m headrace.local.probe CONFIG RESULT [RUN]``: tries out whether this can be learned.

Makes the environment once and builds the algorithm's network for its spaces; with RUN, also loads the
run's newest checkpoint into it. Written as JSON to RESULT: ``{"problems": [...]}``. A process of its
own, because an environment may hang, exit or bring memory that the launcher need not keep.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.config.checks import check_with_spaces
from headrace.config.choices import is_off_policy
from headrace.config.load import load_config
from headrace.errors import ConfigurationError, HeadraceError


def find_problems(config_path: Path, run_dir: Path | None) -> list[str]:
    """Everything that would keep the services from starting; empty if nothing would."""
    from headrace.envs.factory import probe
    from headrace.nets.actor import acts_in_numpy, make_actor

    try:
        config = load_config(config_path)
        spec = probe(config.environment)
        check_with_spaces(config, spec)
        make_actor(config, spec)
        if run_dir is None and acts_in_numpy(config, spec) and config.learner.device == "cpu":
            return []  # what remains could only find faults of torch's own: spare the seconds to load it
        from headrace.rl.algorithm import make_algorithm, make_replay_algorithm

        make = make_replay_algorithm if is_off_policy(config) else make_algorithm
        algorithm = make(config, spec)
    except ConfigurationError as error:
        return list(error.problems)
    if run_dir is None:
        return []
    from headrace.checkpoint import CheckpointDirectory

    record = CheckpointDirectory(run_dir).load_newest(lambda _number, _sentence: None)
    if record is None:
        return []
    try:
        algorithm.load(record.parameters(), record.training_state())
    except (HeadraceError, ValueError, KeyError, RuntimeError, TypeError) as error:
        return [f"--resume: checkpoint {record.version} doesn't fit this configuration: {error}"]
    return []


def main(arguments: Sequence[str]) -> None:
    """Entry point."""
    config_path, result = Path(arguments[0]), Path(arguments[1])
    run_dir = Path(arguments[2]) if len(arguments) > 2 else None
    result.write_text(json.dumps({"problems": find_problems(config_path, run_dir)}), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
