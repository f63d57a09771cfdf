"""The kustomize overlay of one configuration document: base, the components it needs, replicas."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import headrace
from headrace.config.choices import is_off_policy, redis_max_memory_bytes
from headrace.config.load import dump_yaml
from headrace.config.process import THREAD_VARIABLES
from headrace.config.sections import Config
from headrace.errors import ConfigurationError

KUSTOMIZATION = "kustomization.yaml"
SERVICES = ("paramserver", "learner", "sampler", "replay", "redis")
_SAMPLER_GRACE_S, _LEARNER_GRACE_S = 90.0, 60.0  # terminationGracePeriodSeconds of deploy/k8s/services
_MARGIN_S = 10.0  # of that, for what comes before and after a drain
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
                "newTag": tag + _variant(service, config, components),
            }
            for service in SERVICES
        ],
        "replicas": _replicas(config, components),
        "patches": _patches(config, components),
    }


def _variant(service: str, config: Config, components: Sequence[str]) -> str:
    """End of the image's tag, where a service needs another one than usual (docs/images.md)."""
    if service == "learner" and "gpu-learner" in components:
        return "-gpu"
    acts_by_torch = config.sampler.actor == "torch" or config.policy.network not in ("auto", "mlp")
    return "-torch" if service == "sampler" and acts_by_torch else ""


def _patches(config: Config, components: Sequence[str]) -> list[dict[str, str]]:
    """What the manifests have to know of the document: threads, memory of Redis, time to drain."""
    learner: dict[str, Any] = {}
    if config.learner.torch_threads > 1:
        threads = str(config.learner.torch_threads)
        learner["env"] = [{"name": name, "value": threads} for name in THREAD_VARIABLES]
        # One more for what receives and sends.
        cores = str(config.learner.torch_threads + 1)
        learner["resources"] = {"requests": {"cpu": cores}, "limits": {"cpu": str(2 * int(cores))}}
    redis: dict[str, Any] = {}
    if "replay" in components:
        most = redis_max_memory_bytes(config.replay.cold_capacity_bytes)
        redis["env"] = [{"name": "REDIS_MAXMEMORY", "value": str(most)}]
        redis["resources"] = {"requests": {"memory": str(most)}, "limits": {"memory": str(2 * most)}}
    wanted = [
        _patch("StatefulSet", "learner", "headrace", learner, config.learner.drain_s, _LEARNER_GRACE_S),
        _patch("Deployment", "sampler", "headrace", {}, config.sampler.drain_s, _SAMPLER_GRACE_S),
        _patch("StatefulSet", "redis", "redis", redis, 0.0, 0.0),
    ]
    return [{"patch": yaml.safe_dump(patch, sort_keys=False)} for patch in wanted if patch is not None]


def _patch(
    kind: str, name: str, container: str, changes: dict[str, Any], drain_s: float, grace_s: float
) -> dict[str, Any] | None:
    """A change of one workload; None: there is none. ``grace_s`` is what its manifest gives it to end."""
    pod: dict[str, Any] = {}
    if drain_s + _MARGIN_S > grace_s > 0:
        pod["terminationGracePeriodSeconds"] = math.ceil(drain_s + _MARGIN_S)
    if changes:
        pod["containers"] = [{"name": container, **changes}]
    if not pod:
        return None
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"template": {"spec": pod}},
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
