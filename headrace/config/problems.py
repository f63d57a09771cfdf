"""Turns what pydantic found into sentences for people, each with its dotted path and a suggestion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.config.fields import (
    choice_name,
    did_you_mean,
    keys_of,
    literal_choices,
    section_types,
    sections_at,
    suggest_key,
)


def document_path(location: Sequence[int | str]) -> tuple[str, ...]:
    """Path in the document of a pydantic location: without the tag that pydantic adds inside a choice."""
    path: list[str] = []
    skip_tag = False
    for part in location:
        if skip_tag:
            skip_tag = False
            continue
        path.append(str(part))
        arms = _arms_at(path)
        skip_tag = len(arms) > 1
    return tuple(path)


def _arms_at(path: Sequence[str]) -> tuple[Any, ...]:
    """Sections of the choice that sits at ``path``; at most one where there is no choice."""
    parents = sections_at(path[:-1])
    found = [keys_of(parent)[path[-1]] for parent in parents if path[-1] in keys_of(parent)]
    return section_types(found[0].annotation) if found else ()


def explain(error: ValidationError, document: Mapping[str, Any]) -> list[tuple[tuple[str, ...], str]]:
    """All problems as (path, sentence), in the order of the document's sections."""
    problems: list[tuple[tuple[str, ...], str]] = []
    for detail in error.errors():
        path = document_path(detail["loc"])
        if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
            path = (*path, "name")
        problems.append((path, f"{'.'.join(path)}: {_sentence(path, detail, document)}"))
    return problems


def _sentence(path: tuple[str, ...], detail: ErrorDetails, document: Mapping[str, Any]) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, document)
    if kind == "missing":
        return "must be set."
    if kind in ("literal_error", "union_tag_invalid", "union_tag_not_found"):
        return _choice(path, value, context)
    wanted = _WANTED.get(kind)
    if wanted is not None:
        return f"must be {wanted(context)}, not {_shown(value)}."
    return f"{detail['msg'].removeprefix('Value error, ')} (got {_shown(value)})."


_WANTED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda c: f"greater than {c['gt']:g}",
    "greater_than_equal": lambda c: f"at least {c['ge']:g}" if c["ge"] < 2**20 else f"at least {c['ge']}",
    "less_than": lambda c: f"less than {c['lt']:g}" if c["lt"] < 2**20 else f"less than {c['lt']}",
    "less_than_equal": lambda c: f"at most {c['le']:g}" if c["le"] < 2**20 else f"at most {c['le']}",
    "finite_number": lambda c: "a finite number",
    "int_type": lambda c: "a whole number",
    "int_parsing": lambda c: "a whole number",
    "int_from_float": lambda c: "a whole number",
    "int_parsing_size": lambda c: "a whole number of sensible size",
    "float_type": lambda c: "a number",
    "float_parsing": lambda c: "a number",
    "bool_type": lambda c: "true or false",
    "bool_parsing": lambda c: "true or false",
    "string_type": lambda c: "text",
    "string_too_long": lambda c: f"at most {c['max_length']} characters long",
    "list_type": lambda c: "a list, such as [64, 64]",
    "dict_type": lambda c: "a mapping (key: value)",
    "model_type": lambda c: "a section (key: value lines)",
    "model_attributes_type": lambda c: "a section (key: value lines)",
    "too_short": lambda c: f"a list of at least {c['min_length']}",
}


def _unknown_key(path: tuple[str, ...], document: Mapping[str, Any]) -> str:
    """Say that a key does not exist here; say whose it is where another algorithm has it."""
    all_arms = sections_at(path[:-1])
    here = sections_at(path[:-1], document)
    owners = [choice_name(arm) for arm in all_arms if path[-1] in keys_of(arm)]
    if len(all_arms) > 1 and owners and len(here) == 1:
        section, chosen = ".".join(path[:-1]), choice_name(here[0])
        return (
            f"is a setting of {' and '.join(owners)}, but `{section}.name` is `{chosen}`. Remove it; "
            f"from the command line, replace the whole section: {section}='{{name: {chosen}}}'."
        )
    return f"unknown key.{suggest_key(path, document)}"


def _choice(path: tuple[str, ...], value: Any, context: Mapping[str, Any]) -> str:
    arms = sections_at(path[:-1])
    if path[-1] == "name" and len(arms) > 1:
        choices = [choice_name(arm) for arm in arms]
        value = value.get("name") if isinstance(value, Mapping) else value
    else:
        field = next(keys_of(arm)[path[-1]] for arm in sections_at(path[:-1]) if path[-1] in keys_of(arm))
        choices = [str(choice) for choice in literal_choices(field.annotation)]
    listed = " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)
    if value is None:
        return f"must be set; choose {listed}."
    return f"must be {listed}, not {_shown(value)}.{did_you_mean(str(value), choices)}"


def _shown(value: Any) -> str:
    """A value as the reader wrote it, cut to a readable length."""
    if value is None:
        return "empty"
    text = repr(value) if isinstance(value, str) else str(value)
    if isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= 60 else f"{text[:57]}..."
