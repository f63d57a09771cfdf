"""Walks the sections: which keys exist where. Suggestions, overrides and docs/config.md are made from it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from headrace.config.section import Section
from headrace.config.sections import Config

Path = tuple[str, ...]


def key_of(name: str, field: FieldInfo) -> str:
    """Key of a field as it is written in the document (``return`` for ``return_``)."""
    return field.alias or name


def keys_of(section: type[Section]) -> dict[str, FieldInfo]:
    """Fields of one section by the key they have in the document."""
    return {key_of(name, field): field for name, field in section.model_fields.items()}


def arms_of_union(annotation: Any) -> tuple[Any, ...]:
    """Arms of ``A | B``, also of an annotated one; any other annotation is its own single arm."""
    if get_origin(annotation) is Annotated and get_origin(get_args(annotation)[0]) in (Union, UnionType):
        return arms_of_union(get_args(annotation)[0])
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def section_types(annotation: Any) -> tuple[type[Section], ...]:
    """Section classes in an annotation: none for a plain value, several for a choice."""
    arms = arms_of_union(annotation)
    return tuple(arm for arm in arms if isinstance(arm, type) and issubclass(arm, Section))


def literal_choices(annotation: Any) -> tuple[Any, ...]:
    """Values of a ``Literal`` in an annotation, also inside a union; empty: no literal."""
    literals = [arm for arm in arms_of_union(annotation) if get_origin(arm) is Literal]
    return tuple(choice for literal in literals for choice in get_args(literal))


def choice_name(section: type[Section]) -> str:
    """Value of ``name`` that selects this section of a choice, e.g. ``ppo``."""
    return str(section.model_fields["name"].default)


def sections_at(path: Sequence[str], document: Mapping[str, Any] | None = None) -> tuple[type[Section], ...]:
    """Sections a path may lead to. ``document`` narrows a choice by the ``name`` it holds there.

    An empty tuple means that the path leads to no section.
    """
    candidates: tuple[type[Section], ...] = (Config,)
    value: Any = document
    for key in path:
        found = [keys_of(section)[key] for section in candidates if key in keys_of(section)]
        candidates = tuple(arm for field in found for arm in section_types(field.annotation))
        value = value.get(key) if isinstance(value, Mapping) else None
        if len(candidates) > 1 and isinstance(value, Mapping):
            named = tuple(arm for arm in candidates if choice_name(arm) == value.get("name"))
            candidates = named or candidates
    return candidates


def walk(section: type[Section] = Config, prefix: Path = ()) -> Iterator[tuple[Path, FieldInfo]]:
    """Yield every leaf field with its path, in document order. Arms of a choice follow each other."""
    for key, field in keys_of(section).items():
        arms = section_types(field.annotation)
        if not arms:
            yield (*prefix, key), field
        for arm in arms:
            yield from walk(arm, (*prefix, key))


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`` Did you mean `x`?`` for the closest choice, or nothing."""
    close = difflib.get_close_matches(word, list(dict.fromkeys(choices)), n=1, cutoff=0.6)
    return f" Did you mean `{close[0]}`?" if close else ""


def suggest_key(path: Sequence[str], document: Mapping[str, Any] | None = None) -> str:
    """Suggestion for an unknown key: the closest one at its level, else the same word elsewhere."""
    parent, word = tuple(path[:-1]), path[-1]
    siblings = [key for section in sections_at(parent, document) for key in keys_of(section)]
    close = difflib.get_close_matches(word, siblings, n=1, cutoff=0.6)
    if close:
        return f" Did you mean `{'.'.join((*parent, close[0]))}`?"
    elsewhere = [".".join(found) for found, _ in walk() if found[-1] == word]
    if elsewhere:
        return f" Did you mean `{elsewhere[0]}`?"
    anywhere = difflib.get_close_matches(word, list({found[-1] for found, _ in walk()}), n=1, cutoff=0.8)
    elsewhere = [".".join(found) for found, _ in walk() if anywhere and found[-1] == anywhere[0]]
    return f" Did you mean `{elsewhere[0]}`?" if elsewhere else f" Known: {', '.join(siblings)}."
