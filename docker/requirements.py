"""Requirement files of the images' layers, from pyproject.toml: ``python requirements.py PYPROJECT FOLDER``.

``FOLDER/<layer>.txt`` for each layer, ``all.txt`` for all but torch together, so that one resolution decides
the versions of all images. torch is apart: its build is chosen apart. Standard library only.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

APART = "torch"


def layers(pyproject: dict[str, Any]) -> dict[str, list[str]]:
    """Requirements of each layer, with the versions of the project's own dependencies. KeyError: not one."""
    known = {name_of(line): line for line in pyproject["project"]["dependencies"]}
    named: dict[str, list[str]] = pyproject["tool"]["headrace"]["layers"]
    return {layer: [known[name_of(name)] for name in names] for layer, names in named.items()}


def name_of(requirement: str) -> str:
    """The normalized name of a requirement: ``PyYAML>=6`` is of ``pyyaml``."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]).lower()


def main(source: Path, folder: Path) -> None:
    """Write the files."""
    found = layers(tomllib.loads(source.read_text("utf-8")))
    found["all"] = [line for layer, lines in found.items() if layer != APART for line in lines]
    folder.mkdir(parents=True, exist_ok=True)
    for layer, lines in found.items():
        (folder / f"{layer}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
