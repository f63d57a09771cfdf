"""``headrace bench``: runs the benchmarks of a source checkout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import headrace
from headrace.errors import ConfigurationError


def run_bench(name: str, arguments: Sequence[str]) -> int:
    """Run benchmark ``name`` (or ``all``) with its own arguments; returns its exit code.

    ConfigurationError if this is no source checkout: benchmarks are not installed with the package.
    """
    root = Path(headrace.__file__).parents[1]
    if not (root / "benchmarks" / "__main__.py").is_file():
        raise ConfigurationError(
            ["bench: the benchmarks are part of the source tree, not of the installed package."]
        )
    command = [sys.executable, "-m", "benchmarks", *([name] if name else ["--help"]), *arguments]
    return subprocess.run(command, cwd=root, check=False).returncode
