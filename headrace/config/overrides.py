"""``key=value`` overrides: dotted keys, YAML values. ``run.stop.return=475``, ``policy.hidden=[32,32]``."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from headrace.config.document import parse_yaml
from headrace.errors import ConfigurationError


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """Split ``a.b=c`` into its path and its value (an empty value is none).

    Raises:
        ConfigurationError: no ``=``, an empty key, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ConfigurationError(
            [f"override `{text}`: expected key=value, such as run.stop.env_steps=100000"]
        )
    return path, parse_yaml(value, f"override `{text}`")


def apply_overrides(document: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Set each override in a copy of ``document``; a later one wins.

    A mapping replaces the section it is given for. Returns the new document and the problems found,
    one sentence each. Whether a key exists is left to the validation of the whole.
    """
    result = copy.deepcopy(document)
    problems: list[str] = []
    for text in overrides:
        try:
            path, value = parse_override(text)
        except ConfigurationError as error:
            problems.extend(error.problems)
            continue
        place = result
        for depth, key in enumerate(path[:-1], start=1):
            if place.get(key) is None:
                place[key] = {}
            if not isinstance(place[key], dict):
                problems.append(
                    f"{'.'.join(path[:depth])}: is a value, not a section, so `{'.'.join(path)}` can't be set"
                )
                break
            place = place[key]
        else:
            place[path[-1]] = value
    return result, problems
