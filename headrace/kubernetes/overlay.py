"""The kustomize overlay of one configuration document: base, the components it needs, replicas."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import headrace
from headrace.config.choices import is_off_policy
from headrace.config.load import dump_yaml
from headrace.config.sections import Config
from headrace.errors import ConfigurationError

KUSTOMIZATION = "kustomization.yaml"
SERVICES = ("paramserver", "learner", "sampler", "replay", "redis")
_MAX_LABEL = 63  # characters of a label's value


@dataclass(frozen=True, slots=True)
class Choices:
    """What a person chose besides the configuration.

    ``components`` are further ones, by their folder's name; ``registry`` stands before image names, with
    its slash; an empty ``tag`` is this version of Headrace.
    """

    run_id: str
    components: Sequence[str] = field(default=())
    registry: str = ""
    tag: str = ""


def manifests() -> Path:
    """The folder ``deploy/k8s``. ConfigurationError where Headrace isn't run from a checkout."""
    folder = Path(headrace.__file__).resolve().parent.parent / "deploy" / "k8s"
    if not (folder / "base" / KUSTOMIZATION).exists():
        raise ConfigurationError(
            [f"--target: {folder} isn't there; manifests come with a checkout, not with a wheel."]
        )
    return folder


def needed_components(config: Config) -> list[str]:
    """The components that the document asks for, in the order in which they build on each other."""
    needed = ["replay"] if is_off_policy(config) else []
    needed += ["evaluator"] if config.evaluation.enabled else []
    needed += ["relays"] if config.paramserver.relays else []
    needed += ["gpu-learner"] if config.learner.device == "cuda" else []
    return needed


def write_overlay(folder: Path, config: Config, choices: Choices) -> None:
    """Write ``config.yaml`` and ``kustomization.yaml`` into ``folder``, which is made if it isn't there.

    Raises ConfigurationError: an unknown component, a run id that no label could hold.
    """
    root = manifests()
    problems = _problems(root, choices)
    if problems:
        raise ConfigurationError(problems)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(dump_yaml(config), "utf-8")
    document = kustomization(os.path.relpath(root, folder.resolve()), config, choices)
    text = yaml.safe_dump(document, sort_keys=False)
    (folder / KUSTOMIZATION).write_text(f"# Made by `headrace train --target kubernetes`.\n{text}", "utf-8")


def kustomization(root: str, config: Config, choices: Choices) -> dict[str, Any]:
    """The overlay as a document; ``root`` is the way from its folder to ``deploy/k8s``."""
    components = list(dict.fromkeys([*needed_components(config), *choices.components]))
    tag = choices.tag or headrace.__version__
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{root}/base"],
        "components": [f"{root}/components/{name}" for name in components],
        "configMapGenerator": [
            {"name": "headrace-config", "behavior": "replace", "files": ["config.yaml"]},
            {"name": "headrace-run", "behavior": "replace", "literals": [f"run_id={choices.run_id}"]},
        ],
        "images": [
            {
                "name": f"headrace/{service}",
                "newName": f"{choices.registry}headrace/{service}",
                # The component's image is another one than a learner's without GPU.
                "newTag": f"{tag}-gpu" if service == "learner" and "gpu-learner" in components else tag,
            }
            for service in SERVICES
        ],
        "replicas": _replicas(config, components),
    }


def _replicas(config: Config, components: Sequence[str]) -> list[dict[str, Any]]:
    counts = {"learner": config.learner.count}
    if "replay" in components:
        counts["replay"] = config.replay.partitions
    if "relays" in components:
        counts["relay"] = max(1, config.paramserver.relays)
    if not {"hpa", "keda"} & set(components):  # an autoscaler owns the number of samplers
        counts["sampler"] = config.sampler.count
    return [{"name": name, "count": count} for name, count in counts.items()]


def _problems(root: Path, choices: Choices) -> list[str]:
    known = sorted(path.parent.name for path in (root / "components").glob(f"*/{KUSTOMIZATION}"))
    problems = [
        f"--with: there is no component {name!r}; there are {', '.join(known)}."
        for name in choices.components
        if name not in known
    ]
    if not re.fullmatch(rf"[A-Za-z0-9]([A-Za-z0-9._-]{{0,{_MAX_LABEL - 2}}}[A-Za-z0-9])?", choices.run_id):
        problems.append(
            f"--run-id: {choices.run_id!r} must be up to {_MAX_LABEL} letters, digits, dots, dashes and "
            "underscores."
        )
    return problems
