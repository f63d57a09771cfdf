"""``python -P -m headrace.local.probe CONFIG RESULT [RUN]``: tries out whether this can be learned.

Makes the environment once and builds the algorithm's network for its spaces; with RUN, also loads the
newest version of the run that can be read into it. Written as JSON to RESULT: ``{"problems": [...],
"notes": [...]}``. A process of its own, because an environment may hang, exit or bring memory that the
launcher need not keep.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import headrace
from headrace.checkpoint import CheckpointDirectory, Newest, find_newest, read_journal
from headrace.config.checks import check_with_spaces
from headrace.config.choices import is_off_policy
from headrace.config.load import load_config
from headrace.errors import ConfigurationError, HeadraceError
from headrace.local.row import last_row


@dataclass(frozen=True, slots=True)
class Findings:
    """``problems``: why it can't be started. ``notes``: sentences to be said aloud before it is."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def look(config_path: Path, run_dir: Path | None) -> Findings:
    """Everything that would keep the services from starting, and what a person should know before they do."""
    from headrace.envs.factory import probe
    from headrace.nets.actor import acts_in_numpy, make_actor

    hidden = _hidden_services()
    if hidden:
        return Findings([hidden])
    try:
        config = load_config(config_path)
        spec = probe(config.environment)
        check_with_spaces(config, spec)
        make_actor(config, spec)
        if run_dir is None and acts_in_numpy(config, spec) and config.learner.device == "cpu":
            return Findings()  # what remains could only find faults of torch's own: spare loading it
        from headrace.rl.algorithm import make_algorithm, make_replay_algorithm

        make = make_replay_algorithm if is_off_policy(config) else make_algorithm
        algorithm = make(config, spec)
    except ConfigurationError as error:
        return Findings(list(error.problems))
    if run_dir is None:
        return Findings()
    found = find_newest(CheckpointDirectory(run_dir), read_journal(run_dir))
    findings = look_back(run_dir, found)
    if found.record is None:
        return findings
    try:
        algorithm.load(found.record.parameters(), found.record.training_state())
    except (HeadraceError, ValueError, KeyError, RuntimeError, TypeError) as error:
        sentence = f"--resume: version {found.record.version} doesn't fit this configuration: {error}"
        return Findings([*findings.problems, sentence])
    return findings


def _hidden_services() -> str:
    """Whether something else called ``services`` comes first on the Python path, in a sentence; empty: no."""
    ours = Path(headrace.__file__).resolve().parent.parent / "services"
    found = find_spec("services")
    place = Path(found.origin or "").resolve() if found is not None else None
    if place is None or place.parent == ours:
        return ""
    return (
        f"PYTHONPATH: {place} hides Headrace's own package `services`; rename yours, or take its folder off "
        "the path"
    )


def look_back(run_dir: Path, found: Newest) -> Findings:
    """Whether a resumed run goes on from where it was; if from somewhere else, from where and why."""
    reached = int(last_row(run_dir / "metrics.jsonl").get("policy_version") or 0)
    damaged = "; ".join(sentence for _number, sentence in found.skipped)
    record = found.record
    if record is None:
        if damaged:
            return Findings([f"--resume: no version of this run can be read. {damaged}"])
        if reached > 0:
            return Findings(
                [f"--resume: this run had reached version {reached}, but none was saved: start it anew"]
            )
        return Findings(notes=["This run has no version yet: it starts from the beginning."])
    newest = max([reached, *(number for number, _sentence in found.skipped)])
    place = f"version {record.version} ({record.report.env_steps:,} environment steps)"
    if newest > record.version.number:
        why = damaged or "later ones were not saved"
        return Findings(notes=[f"Warning: going on from {place}, not from {newest}, the newest: {why}."])
    if damaged:
        return Findings(notes=[f"Going on from {place}, which is whole in the journal. {damaged}"])
    return Findings()


def main(arguments: Sequence[str]) -> None:
    """Entry point."""
    config_path, result = Path(arguments[0]), Path(arguments[1])
    run_dir = Path(arguments[2]) if len(arguments) > 2 else None
    result.write_text(json.dumps(asdict(look(config_path, run_dir))), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
