"""The manifests of deploy/k8s as objects: built by kustomize, and asked simple questions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from headrace.config.load import load_config
from headrace.config.sections import Config

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "k8s"
OVERLAYS = ("quickstart", "offpolicy", "multi-learner", "production")
WORKLOADS = ("Deployment", "StatefulSet")

Object = dict[str, Any]
Case = tuple[str, tuple[str, ...]]  # an overlay, and components besides its own
Build = Callable[[Case], list[Object]]

_SECURE = ("tls", "token", "network-policy")
COMBINATIONS: tuple[Case, ...] = (
    *((overlay, ()) for overlay in OVERLAYS),
    *((overlay, _SECURE) for overlay in OVERLAYS if overlay != "production"),
    ("quickstart", ("hpa",)),
    ("quickstart", ("keda", "prometheus-operator", "grafana")),
    ("quickstart", ("relays", "gpu-learner", "tls", "tls-cert-manager")),
    ("quickstart", ("chaos-mesh",)),
    ("offpolicy", ("redis-cluster",)),
    (
        "offpolicy",
        ("redis-cluster", "tls", "token", "network-policy", "relays", "hpa", "prometheus-operator"),
    ),
    ("offpolicy", ("redis-external", "keda", "gpu-learner")),
    ("offpolicy", ("chaos-mesh", "network-policy")),
    ("multi-learner", ("gpu-learner", "relays", "keda")),
    ("production", ("tls-cert-manager", "prometheus-operator", "token")),
    ("production", ("gpu-learner", "chaos-mesh")),
    ("production", ("replay", "redis-cluster", "tls")),
)


def name_of(case: Case) -> str:
    """For test ids."""
    return "+".join((case[0], *case[1]))


def kustomize(folder: Path) -> list[Object]:
    """What ``kubectl apply -k`` would send, with the default load restrictor."""
    kubectl = shutil.which("kubectl")
    assert kubectl is not None
    done = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def with_components(tree: Path, overlay: str, components: Sequence[str]) -> list[Object]:
    """An overlay as somebody extends it: by a folder beside it, in a copy of the manifests at ``tree``."""
    if not components:
        return kustomize(tree / "overlays" / overlay)
    folder = tree / "overlays" / "-".join(("own", overlay, *components))
    folder.mkdir(exist_ok=True)
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../{overlay}"],
        "components": [f"../../components/{name}" for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document), "utf-8")
    return kustomize(folder)


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    """Those of these kinds."""
    return [found for found in objects if found["kind"] in kinds]


def workloads(objects: Sequence[Object]) -> dict[str, Object]:
    """StatefulSets and Deployments by name."""
    return {found["metadata"]["name"]: found for found in of_kind(objects, *WORKLOADS)}


def pod(workload: Object) -> Object:
    """Its pods' spec."""
    return dict(workload["spec"]["template"]["spec"])


def pod_labels(workload: Object) -> dict[str, str]:
    """Labels of its pods."""
    return dict(workload["spec"]["template"]["metadata"]["labels"])


def containers(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Every container with the name of its workload."""
    for name, workload in workloads(objects).items():
        for container in pod(workload)["containers"]:
            yield name, container


def services_of_headrace(objects: Sequence[Object]) -> dict[str, Object]:
    """The container of each workload that runs one of Headrace's own processes."""
    return {name: container for name, container in containers(objects) if container["name"] == "headrace"}


def environment(container: Object) -> dict[str, str]:
    """Its variables with a literal value."""
    return {entry["name"]: entry["value"] for entry in container.get("env", ()) if "value" in entry}


def document(objects: Sequence[Object], tmp_path: Path) -> Config:
    """The configuration of the run, read as a process would."""
    (found,) = [
        m for m in of_kind(objects, "ConfigMap") if m["metadata"]["name"].startswith("headrace-config")
    ]
    path = tmp_path / "config.yaml"
    path.write_text(found["data"]["config.yaml"], "utf-8")
    return load_config(path)


def quantity(text: str) -> float:
    """A quantity in its unit (bytes, cores)."""
    units = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    for unit, factor in units.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)
