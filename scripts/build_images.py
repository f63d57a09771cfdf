"""Builds the container images: ``python scripts/build_images.py --help``. Standard library only.

One engine that works is enough: docker, podman or buildah, the first one that answers.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / "docker" / "wheels"
ENGINES = ("docker", "podman", "buildah")
_ANSWER_S = 30.0


def pyproject() -> dict[str, Any]:
    """The project's own description."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def services() -> list[str]:
    """Names of all images."""
    return list(pyproject()["tool"]["headrace"]["services"])


def answers(engine: str) -> bool:
    """Whether the engine is installed, and works: the client of docker is often there without its server."""
    if shutil.which(engine) is None:
        return False
    try:
        done = subprocess.run([engine, "info"], capture_output=True, timeout=_ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def choose_engine(wanted: str, works: Callable[[str], bool] = answers) -> str | None:
    """``wanted``, or with ``auto`` the first engine that works; None: it doesn't, or none does."""
    candidates = ENGINES if wanted == "auto" else (wanted,)
    return next((engine for engine in candidates if works(engine)), None)


def command(engine: str, service: str, options: argparse.Namespace) -> list[str]:
    """What builds one image."""
    cuda = options.gpu and service == "learner"
    with_torch = options.sampler_torch and service == "sampler"
    arguments = {
        "VERSION": options.version,
        "BASE": options.base,
        "BUILD_BASE": options.build_base or options.base,
        "PIP_ARGS": options.pip_args,
        "TORCH_PIP_ARGS": options.torch_pip_args,
        "EXTRAS": options.extras,
        "TORCH": "cuda" if cuda else "",
    }
    given = [f"--build-arg={name}={value}" for name, value in arguments.items() if value]
    tag = (
        f"{options.registry}/{service}:{options.version}{'-gpu' if cuda else '-torch' if with_torch else ''}"
    )
    return [
        engine, "build", *shlex.split(options.engine_args), "--file", str(ROOT / "docker" / "Dockerfile"),
        "--target", f"{service}-torch" if with_torch else service, "--tag", tag, *given, str(ROOT),
    ]  # fmt: skip


def download(options: argparse.Namespace) -> list[str]:
    """What fetches all wheels for a build without a package index, for this very Python."""
    specification = importlib.util.spec_from_file_location(
        "requirements", ROOT / "docker" / "requirements.py"
    )
    assert specification is not None
    assert specification.loader is not None
    requirements = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(requirements)
    described = pyproject()
    found = [line for lines in requirements.layers(described).values() for line in lines]
    found += described["build-system"]["requires"]
    pip = [sys.executable, "-m", "pip", "download", "--only-binary", ":all:", "--dest", str(WHEELS)]
    return [
        *pip,
        *shlex.split(options.pip_args),
        *shlex.split(options.torch_pip_args),
        *found,
        *shlex.split(options.extras),
    ]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    names = services()
    parser = argparse.ArgumentParser(prog="make images", description="Build the container images.")
    parser.add_argument(
        "services", nargs="*", metavar="SERVICE", help=f"which of {', '.join(names)}; left out: all"
    )
    parser.add_argument(
        "--engine", default="auto", choices=("auto", *ENGINES), help="default: the first that works"
    )
    parser.add_argument("--engine-args", default="", help="for the engine's build, such as '--network host'")
    parser.add_argument(
        "--registry", default="headrace", help="in front of /SERVICE:VERSION; default: headrace"
    )
    parser.add_argument(
        "--version", default=str(pyproject()["project"]["version"]), help="default: %(default)s"
    )
    parser.add_argument("--base", default="", help="base image: Python 3.11 or newer, Debian's or another")
    parser.add_argument(
        "--build-base", default="", help="the same Python with pip and venv; default: the base image"
    )
    parser.add_argument("--pip-args", default="", help="for pip: an index; --no-index: docker/wheels alone")
    parser.add_argument(
        "--torch-pip-args", default="", help="for pip, for torch: the index with the build wanted"
    )
    parser.add_argument("--extras", default="", help="what environments need, such as 'gymnasium[box2d]'")
    parser.add_argument("--gpu", action="store_true", help="the learner with CUDA, as learner:VERSION-gpu")
    parser.add_argument(
        "--sampler-torch", action="store_true", help="the sampler with torch, as sampler:VERSION-torch"
    )
    parser.add_argument(
        "--download", action="store_true", help="only fill docker/wheels, for this very Python"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    options = parser.parse_args(argv)
    if unknown := sorted(set(options.services) - set(names)):
        parser.error(f"no such service: {', '.join(unknown)}; there are {', '.join(names)}")
    variants = ["learner"] * options.gpu + ["sampler"] * options.sampler_torch
    options.services = options.services or variants or names
    return options


def main(argv: Sequence[str], works: Callable[[str], bool] = answers) -> int:
    """Build; returns the exit code: of the first build that failed, or 2 if there is no engine."""
    options = parse(argv)
    if options.download:
        commands = [download(options)]
    else:
        engine = choose_engine(options.engine, works)
        if engine is None:
            tried = ", ".join(ENGINES) if options.engine == "auto" else options.engine
            print(
                f"No container engine works here (tried: {tried}). Install docker, podman or buildah, start "
                "docker's server if it is docker, and see what `docker info` or `podman info` says.",
                file=sys.stderr,
            )
            return 2
        commands = [command(engine, service, options) for service in options.services]
    for each in commands:
        print(shlex.join(each), flush=True)
        if options.dry_run:
            continue
        code = subprocess.run(each, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
