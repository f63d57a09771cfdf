"""Generates headrace/v1 from proto/ with the pinned compiler. ``--check`` only says whether it is in sync."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
COMPILER_VERSION = "1.76.0"
"""Of grpcio-tools. Its output loads on protobuf 6.31.1 to 7.x; another version would give other text."""


def generate(target: Path) -> None:
    """Write ``headrace/v1/*_pb2*`` under ``target``. Exits with the compiler's status if it fails."""
    installed = importlib.metadata.version("grpcio-tools")
    if installed != COMPILER_VERSION:
        sys.exit(f"grpcio-tools {installed} is installed, but {COMPILER_VERSION} is pinned")
    sources = sorted(str(path.relative_to(ROOT / "proto")) for path in (ROOT / "proto").rglob("*.proto"))
    includes = Path(protoc.__file__).parent / "_proto"
    status = protoc.main(
        [
            "protoc",
            f"-I{ROOT / 'proto'}",
            f"-I{includes}",
            *(f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")),
            *sources,
        ]
    )
    if status:
        sys.exit(status)


def generated_files(root: Path) -> dict[str, bytes]:
    """Content of each generated file under ``root`` by its relative path."""
    found = (root / "headrace" / "v1").glob("*_pb2*.py*")
    return {
        str(path.relative_to(root)): path.read_bytes() for path in found if path.suffix in (".py", ".pyi")
    }


def main() -> int:
    """Generate in place, or compare with what is there (exit status 1: they differ)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if anything would change")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        wanted, present = generated_files(Path(folder)), generated_files(ROOT)
    stale = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
    if check:
        for name in stale:
            print(f"{name}: not what proto/ generates; run `make proto`", file=sys.stderr)
        return int(bool(stale))
    for name in stale:
        if name in wanted:
            (ROOT / name).write_bytes(wanted[name])
        else:
            (ROOT / name).unlink()
        print(f"{name}: updated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
