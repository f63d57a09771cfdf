"""Reads YAML into plain values: numbers as people write them, no duplicate keys, errors with a line.

The scalar rules are those of the YAML 1.2 core schema, so ``1e-4`` is a number, ``no`` is a word and
``2024-01-01`` is not a date. (PyYAML by itself follows YAML 1.1, where ``1e-4`` is a word.)
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import yaml

from headrace.errors import ConfigurationError


class DocumentLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalar rules of YAML 1.2; refuses duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping; a key that appears twice is an error that names both lines."""
        self.flatten_mapping(node)
        first_lines: dict[str, int] = {}
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                line = key_node.start_mark.line + 1
                if key_node.value in first_lines:
                    raise yaml.constructor.ConstructorError(
                        None,
                        None,
                        f"the key `{key_node.value}` is already set on line {first_lines[key_node.value]}",
                        key_node.start_mark,
                    )
                first_lines[key_node.value] = line
        return super().construct_mapping(node, deep=True)


class DocumentDumper(yaml.SafeDumper):
    """PyYAML's safe dumper; quotes words that YAML 1.1 or 1.2 would read as something else."""


def _build_mapping(loader: DocumentLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    # Not the generator of PyYAML: built at once, so that a mapping can't contain itself.
    return loader.construct_mapping(node)


DocumentLoader.add_constructor("tag:yaml.org,2002:map", _build_mapping)
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?(?:[0-9][0-9_]*|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
    ("merge", r"^<<$", "<"),
):
    for _kind in (DocumentLoader, DocumentDumper):
        _kind.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), list(_first))


def _build_int(loader: DocumentLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    return int(text, 16) if text.lower().startswith("0x") else int(text)


def _build_float(loader: DocumentLoader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


DocumentLoader.add_constructor("tag:yaml.org,2002:int", _build_int)
DocumentLoader.add_constructor("tag:yaml.org,2002:float", _build_float)


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML value. ``source`` names it in errors.

    Raises:
        ConfigurationError: not YAML, or a key twice; names source, line and column.
    """
    try:
        return yaml.load(text, DocumentLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
        raise ConfigurationError([f"{place}: {error.problem or error.context}"]) from error
    except yaml.YAMLError as error:
        raise ConfigurationError([f"{source}: not valid YAML: {' '.join(str(error).split())}"]) from error


def format_yaml(document: dict[str, Any]) -> str:
    """Write a mapping of plain values as YAML that :func:`parse_yaml` reads back to an equal one."""
    return yaml.dump(document, Dumper=DocumentDumper, sort_keys=False, width=110)


def read_document(path: Path) -> dict[str, Any]:
    """Read the configuration file at ``path`` into a mapping.

    Raises:
        ConfigurationError: the file is missing, a folder, unreadable, empty, not UTF-8, not YAML,
            or not a mapping.
    """
    if path.is_dir():
        raise ConfigurationError([f"{path}: is a folder; name a YAML file"])
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigurationError([f"{path}: no such file{_neighbours(path)}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError([f"{path}: is not a UTF-8 text file"]) from error
    except OSError as error:
        raise ConfigurationError([f"{path}: can't be read: {error.strerror or error}"]) from error
    document = parse_yaml(text, str(path))
    if document is None:
        raise ConfigurationError([f"{path}: is empty; `environment.id` at least must be set"])
    if not isinstance(document, dict):
        raise ConfigurationError(
            [f"{path}: must hold a mapping of sections, not a {type(document).__name__}"]
        )
    return document


def _neighbours(path: Path) -> str:
    """Return the YAML files beside a missing one that look like it, as the end of a sentence."""
    try:
        names = sorted(entry.name for entry in path.parent.glob("*.yaml"))
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1) or difflib.get_close_matches(
        f"{path.stem}.yaml", names, n=1
    )
    return f"; did you mean `{path.parent / close[0]}`?" if close else ""
