"""One layer of an image: ``python layer.py REQUIREMENTS WHEELS FOLDER [REQUIREMENT ...]``.

Installs into /opt/headrace/venv from WHEELS alone, takes away what no process needs, and puts what is new
under FOLDER, to be copied over an image. Run by the builder's pip. Standard library only.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

VENV = Path("/opt/headrace/venv")

# Of packages' own tests and of building against them: nothing of it is imported, and there is no compiler.
_FOLDERS = ("tests", "include")
_OF_TORCH = (
    "torch/bin/test_*",
    "torch/bin/protoc*",
    "torch/lib/*_test.so",
    "torch/lib/*.a",
    "torch/share",
    "torch/test",
)


def install(requirements: Path, wheels: Path, more: list[str]) -> None:
    """Install, compiled to bytecode: a read-only container can't keep it."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(VENV / "bin" / "python"),
        "--disable-pip-version-check",
    ]
    chosen = ["install", "--no-index", "--no-cache-dir", "--find-links", str(wheels), "-r", str(requirements)]
    subprocess.run([*pip, *chosen, *more], check=True)


def slim() -> None:
    """Take away what no process needs, and the symbols of libraries if there is a strip."""
    for packages in VENV.glob("lib/python*/site-packages"):
        found = [path for name in _FOLDERS for path in packages.rglob(name) if path.is_dir()]
        found += [path for pattern in _OF_TORCH for path in packages.glob(pattern)]
        for path in found:
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():  # one within another is gone with it
                path.unlink()
        if shutil.which("strip"):
            for library in packages.rglob("*.so*"):
                subprocess.run(["strip", "--strip-unneeded", str(library)], check=False)


def files() -> set[Path]:
    """All that is in the environment."""
    return {path for path in VENV.rglob("*") if path.is_symlink() or not path.is_dir()}


def main(requirements: Path, wheels: Path, folder: Path, more: list[str]) -> None:
    """Install, slim, and copy what is new."""
    before = files()
    install(requirements, wheels, more)
    slim()
    for path in sorted(files() - before):
        copy = folder / path.relative_to("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy, follow_symlinks=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
