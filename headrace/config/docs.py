"""Writes the reference of the configuration (docs/config.md) and its JSON Schema from the sections."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace.config.fields import arms_of_union, choice_name, keys_of, literal_choices, section_types
from headrace.config.section import Section
from headrace.config.sections import Config

_INTRODUCTION = """\
# Configuration

One YAML file describes a run. Only `environment.id` and one of `run.stop` must be set; everything else has
the default given here. Any key can be set from the command line with its dotted path, the value written as in
YAML: `headrace train configs/cartpole-ppo.yaml run.seed=3 policy.hidden=[32,32]`. A mapping given that way
replaces its whole section. An empty value means none.

`headrace config show FILE` prints the whole document with all defaults filled in and its digest;
`headrace config diff A B` names the keys in which two documents (or runs) differ. The digest rides on
everything a run produces, and processes with different digests refuse to talk to each other.

This page is made by `make docs`. Don't edit it.
"""


def config_markdown() -> str:
    """Text of docs/config.md."""
    return "\n".join([_INTRODUCTION, *_section_lines(Config, ())]).rstrip() + "\n"


def config_schema() -> str:
    """JSON Schema of the document, for editors and other tools."""
    return json.dumps(Config.model_json_schema(by_alias=True), indent=2) + "\n"


def _section_lines(section: type[Section], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the tables of one section and, after its own fields, of the sections inside it."""
    fields = keys_of(section)
    leaves = {key: field for key, field in fields.items() if not section_types(field.annotation)}
    if leaves:
        yield "| key | value | default | meaning |"
        yield "|---|---|---|---|"
        for key, field in leaves.items():
            cells = (
                f"`{'.'.join((*path, key))}`",
                _type_text(field),
                _default_text(field),
                field.description or "",
            )
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""
    for key, field in fields.items():
        arms = section_types(field.annotation)
        for arm in arms:
            name = ".".join((*path, key))
            title = f"`{name}`" if len(arms) == 1 else f"`{name}` with `{name}.name: {choice_name(arm)}`"
            yield f"{'#' * (len(path) + 2)} {title}"
            yield ""
            yield " ".join((arm.__doc__ or "").split())
            yield ""
            yield from _section_lines(arm, (*path, key))


def _type_text(field: FieldInfo) -> str:
    arms = arms_of_union(field.annotation)
    bounds = [*field.metadata, *(item for arm in arms for item in getattr(arm, "__metadata__", ()))]
    nested = [item for bound in bounds for item in getattr(bound, "metadata", [bound])]
    text = " or ".join(_plain(arm) for arm in arms if arm is not type(None))
    return ", ".join([text, *_bound_texts(nested)]) + (", or empty" if type(None) in arms else "")


def _plain(annotation: Any) -> str:
    choices = literal_choices(annotation)
    if choices:
        return " or ".join(f"`{choice}`" for choice in choices)
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) is list:
        return {int: "list of whole numbers", str: "list of texts"}[_bare(get_args(annotation)[0])]
    return {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}.get(
        annotation, "mapping"
    )


def _bare(annotation: Any) -> type:
    bare: type = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    return bare


def _bound_texts(bounds: Sequence[Any]) -> Iterator[str]:
    for bound in bounds:
        if isinstance(bound, annotated_types.Ge):
            yield f"at least {bound.ge}"
        elif isinstance(bound, annotated_types.Gt):
            yield f"above {bound.gt}"
        elif isinstance(bound, annotated_types.Le):
            yield f"at most {bound.le}"
        elif isinstance(bound, annotated_types.Lt):
            yield f"below {bound.lt}"
        elif isinstance(bound, annotated_types.MaxLen):
            yield f"at most {bound.max_length} characters"


def _default_text(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return f"`{json.dumps(field.get_default(call_default_factory=True, validated_data={}))}`"
    if field.default is PydanticUndefined:
        return "must be set"
    return "empty" if field.default in (None, "") else f"`{json.dumps(field.default)}`".replace('"', "")
