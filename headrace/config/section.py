"""The base of all sections of the configuration document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Base of all sections: frozen; an unknown key, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, data: Any) -> Any:
        # Pydantic reads true as 1. Who writes `lanes: true` has made a mistake: as a word it is refused.
        if not isinstance(data, dict):
            return data
        fields = {key: field for name, field in cls.model_fields.items() for key in (name, field.alias)}
        return {
            key: str(value).lower()
            if isinstance(value, bool)
            and key in fields
            and {int, float}.intersection(_types_in(fields[key].annotation))
            else value
            for key, value in data.items()
        }


def _types_in(annotation: Any) -> Iterator[type]:
    """Every plain type inside an annotation such as ``Annotated[int, ...] | None``."""
    if isinstance(annotation, type):
        yield annotation
    elif get_origin(annotation) is not Literal:
        for arm in get_args(annotation):
            yield from _types_in(arm)
