"""Loads every configs/*.yaml, so that no preset is ever broken. Exit status 1 if one is."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.config.digest import config_digest
from headrace.config.load import load_config
from headrace.errors import ConfigurationError

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Print the digest of each preset, or what is wrong with it."""
    status = 0
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        try:
            print(f"{config_digest(load_config(path))}  {path.relative_to(ROOT)}")
        except ConfigurationError as error:
            status = 1
            print(f"{path.relative_to(ROOT)}:\n{error}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
