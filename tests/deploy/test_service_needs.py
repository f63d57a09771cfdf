"""Each service needs only what its image has: pyproject.toml, tool.headrace.services."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LAYERS: dict[str, list[str]] = PROJECT["tool"]["headrace"]["layers"]
SERVICES: dict[str, list[str]] = PROJECT["tool"]["headrace"]["services"]
PROCESSES = sorted(set(SERVICES) - {"redis"})

# Samplers compute some policies by torch. They say so, and how to build an image that has it.
OPTIONAL = {"sampler": {"torch"}}

_IMPORT = """
import importlib, sys
own, blocked = sys.argv[1].split(","), set(sys.argv[2].split(","))
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is not in this image", name=name)
sys.meta_path.insert(0, Blocked())
for name in own:
    importlib.import_module(name)
"""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def held(layers: list[str]) -> set[str]:
    """Distributions of some layers with all that they need, as they are installed here."""
    found: set[str] = set()
    left = [normalized(name) for layer in layers for name in LAYERS[layer]]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needs = requires(name) or []
        except PackageNotFoundError:
            continue
        left += [normalized(re.split(r"[^\w.-]", need)[0]) for need in needs if "extra ==" not in need]
    return found


class _Imports(ast.NodeVisitor):
    """All modules that a file imports, now or later; not those for type checkers alone."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                self.visit(other)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.names |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.module is not None
        self.names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}


@cache
def parsed(module: str) -> ast.Module | None:
    """None: not one of ours."""
    path = ROOT / module.replace(".", "/")
    files = (path / "__init__.py", path.with_suffix(".py"))
    return next((ast.parse(file.read_text("utf-8")) for file in files if file.exists()), None)


def closure(service: str) -> tuple[set[str], dict[str, str]]:
    """Our modules that a service may ever import; and others' by top-level name, with one that imports it."""
    files = (ROOT / "services" / service).rglob("*.py")
    left = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    own: set[str] = set()
    others: dict[str, str] = {}
    while left:
        module = left.pop().removesuffix(".__init__")
        tree = None if module in own else parsed(module)
        if tree is None:
            continue
        own.add(module)
        imports = _Imports()
        imports.visit(tree)
        for name in imports.names:
            top, *_ = parts = name.split(".")
            if top in ("headrace", "services"):
                left += [".".join(parts[: end + 1]) for end in range(len(parts))]
            else:
                others.setdefault(top, module)
    return own, others


@pytest.mark.parametrize("service", PROCESSES)
def test_nothing_that_a_service_may_import_is_missing_from_its_image(service: str) -> None:
    _own, others = closure(service)
    distributions = packages_distributions()
    has = held(SERVICES[service]) | OPTIONAL.get(service, set())
    missing = {
        f"{top} ({module})"
        for top, module in others.items()
        if top not in sys.stdlib_module_names
        and not has & {normalized(name) for name in distributions.get(top, [top])}
    }
    assert not missing


@pytest.mark.parametrize("service", PROCESSES)
def test_a_service_starts_without_what_its_image_lacks(service: str) -> None:
    own, _others = closure(service)
    has = held(SERVICES[service])
    blocked = [
        top
        for top, names in packages_distributions().items()
        if not has & {normalized(name) for name in names} and top not in ("headrace", "services")
    ]
    needs_torch = {module for module in own if "torch" not in has and _imports_torch(module)}
    modules = sorted(module for module in own - needs_torch if not module.endswith("__main__"))
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, ",".join(modules), ",".join(blocked)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("service", ["sampler", "replay"])
def test_samplers_and_replay_have_no_torch(service: str) -> None:
    assert "torch" not in held(SERVICES[service])


def test_the_command_line_starts_in_every_image() -> None:
    has = held(["common"])
    blocked = [
        top
        for top, names in packages_distributions().items()
        if not has & {normalized(name) for name in names} and top not in ("headrace", "services")
    ]
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, "headrace.cli.main", ",".join(blocked)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_layer_is_of_the_projects_own_dependencies() -> None:
    known = {normalized(re.split(r"[^\w.-]", line)[0]) for line in PROJECT["project"]["dependencies"]}
    assert {normalized(name) for names in LAYERS.values() for name in names} <= known


def _imports_torch(module: str) -> bool:
    """At once, when it is imported: directly, or through one of ours."""
    return "torch" in _at_once(module, set())


def _at_once(module: str, seen: set[str]) -> set[str]:
    tree = None if module in seen else parsed(module)
    if tree is None:
        return set()
    seen.add(module)
    found: set[str] = set()
    for node in tree.body:
        imports = _Imports()
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.visit(node)
        for name in imports.names:
            parts = name.split(".")
            found.add(parts[0])
            if parts[0] in ("headrace", "services"):
                for end in range(len(parts)):
                    found |= _at_once(".".join(parts[: end + 1]), seen)
    return found
