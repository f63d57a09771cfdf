"""Loads the configuration: file, overrides, types and ranges, rules between fields. All problems at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.config.checks import check
from headrace.config.digest import config_digest, config_document
from headrace.config.document import format_yaml, read_document
from headrace.config.fields import keys_of, section_types, sections_at
from headrace.config.overrides import apply_overrides
from headrace.config.problems import explain
from headrace.config.sections import Config
from headrace.errors import ConfigurationError


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read the file at ``path``, set the ``key=value`` overrides, and check everything.

    Raises:
        ConfigurationError: holds every problem, each a sentence that starts with its dotted path.
    """
    return config_from_document(read_document(Path(path)), overrides)


def config_from_document(document: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """Check a document that has already been read; see :func:`load_config`."""
    merged, problems = apply_overrides(dict(document), overrides)
    merged = _without_empty_sections(merged)
    try:
        config = Config.model_validate(merged)
    except ValidationError as error:
        explained = explain(error, merged)
        problems += [sentence for _, sentence in explained]
        problems += _rules_of_the_rest(merged, [path for path, _ in explained])
    else:
        problems += [problem.sentence for problem in check(config)]
        if not problems:
            return config
    raise ConfigurationError(list(dict.fromkeys(problems)))


def dump_yaml(config: Config) -> str:
    """Return the resolved document as YAML, its digest in the first line. Loading it gives an equal one."""
    return f"# config_digest: {config_digest(config)}\n{format_yaml(config_document(config))}"


def _without_empty_sections(document: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Leave out sections that are empty because every line in them is commented out."""
    kept: dict[str, Any] = {}
    known = {key: field for section in sections_at(path) for key, field in keys_of(section).items()}
    for key, value in document.items():
        is_section = key in known and bool(section_types(known[key].annotation))
        if is_section and value is None:
            continue
        kept[key] = (
            _without_empty_sections(value, (*path, key)) if is_section and isinstance(value, dict) else value
        )
    return kept


def _rules_of_the_rest(document: Mapping[str, Any], broken: Sequence[tuple[str, ...]]) -> list[str]:
    """Rules between fields that are broken as well, where no field they read is itself in error.

    The broken values are taken out, so that defaults stand in for them; a rule that reads one stays silent.
    """
    repaired = copy.deepcopy(dict(document))
    for path in broken:
        _remove(repaired, path)
    if not isinstance(repaired.get("environment"), dict):
        repaired["environment"] = {}
    repaired["environment"].setdefault("id", "unknown")
    try:
        config = Config.model_validate(repaired)
    except ValidationError:
        return []
    dotted = {".".join(path[:length]) for path in broken for length in range(1, len(path) + 1)}
    whole = {".".join(path) for path in broken}
    return [
        problem.sentence
        for problem in check(config)
        if not dotted.intersection(problem.reads)
        and not any(read.startswith(f"{path}.") for read in problem.reads for path in whole)
    ]


def _remove(document: dict[str, Any], path: Sequence[str]) -> None:
    place: Any = document
    for key in path[:-1]:
        child = place.get(key) if isinstance(place, dict) else None
        if not isinstance(child, dict):
            if isinstance(place, dict):
                place.pop(key, None)
            return
        place = child
    place.pop(path[-1], None)
    if path[-1] == "name" and len(path) > 1:
        # Without its name a choice can't be read: take all of it out.
        _remove(document, path[:-1])
