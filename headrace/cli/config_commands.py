"""``headrace config show|diff|schema|docs``: look at a configuration without starting anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.config.digest import config_digest, config_json, differing_keys, flatten
from headrace.config.docs import config_markdown, config_schema
from headrace.config.load import dump_yaml, load_config
from headrace.errors import ConfigurationError

app = typer.Typer(no_args_is_help=True, help="Look at a configuration: resolve, compare, document.")

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML file, or the folder of a run.")
]
OverridesArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[key=value ...]", help="Overrides with dotted keys.")
]


@app.command()
def show(config: ConfigArgument, overrides: OverridesArgument = None) -> None:
    """Print the resolved document, every default filled in, with its digest."""
    typer.echo(dump_yaml(load_config(document_of(config), overrides or [])), nl=False)


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A YAML file, or the folder of a run.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """Print the keys in which two resolved documents differ, with both values."""
    config_a, config_b = load_config(document_of(a)), load_config(document_of(b))
    typer.echo(f"{config_digest(config_a)}  {a}\n{config_digest(config_b)}  {b}")
    json_a, json_b = config_json(config_a), config_json(config_b)
    values_a, values_b = flatten(json.loads(json_a)), flatten(json.loads(json_b))
    for key in differing_keys(json_a, json_b):
        typer.echo(f"{key}: {_value(values_a, key)} -> {_value(values_b, key)}")
    if json_a == json_b:
        typer.echo("equal")


@app.command()
def schema() -> None:
    """Print the JSON Schema of the document, for editors and other tools."""
    typer.echo(config_schema(), nl=False)


@app.command()
def docs() -> None:
    """Print the reference of every key (docs/config.md)."""
    typer.echo(config_markdown(), nl=False)


def document_of(path: Path) -> Path:
    """Path of a document: the file itself, or ``config.yaml`` in the folder of a run.

    Raises:
        ConfigurationError: a folder without ``config.yaml``.
    """
    if not path.is_dir():
        return path
    if not (path / "config.yaml").is_file():
        raise ConfigurationError([f"{path}: is a folder without config.yaml, so not the folder of a run"])
    return path / "config.yaml"


def _value(values: dict[str, object], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "(absent)"
