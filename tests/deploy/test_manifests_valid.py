"""Every overlay, and each sensible combination with components, is what the Kubernetes API takes."""

from __future__ import annotations

import json

import kubernetes_validate
import pytest
from kubernetes_validate.utils import all_versions, major_minor
from manifests import COMBINATIONS, MANIFESTS, OVERLAYS, Build, Object, kustomize

_OLDEST = (1, 30)
_CUSTOM = ("keda.sh", "cert-manager.io", "monitoring.coreos.com", "chaos-mesh.org")


def _versions() -> list[str]:
    known = {major_minor(version) for version in all_versions()}
    return sorted(
        (v for v in known if tuple(map(int, v.split("."))) >= _OLDEST), key=lambda v: int(v.split(".")[1])
    )


def _is_custom(found: Object) -> bool:
    return found["apiVersion"].partition("/")[0] in _CUSTOM


def _check(found: Object, version: str) -> None:
    try:
        kubernetes_validate.validate(found, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        place = ".".join(map(str, error.path))
        pytest.fail(f"{found['kind']}/{found['metadata']['name']} in {version}: {place}: {error.message}")


@pytest.mark.parametrize("version", _versions())
def test_overlays_are_valid_in_every_supported_version(build: Build, version: str) -> None:
    seen: set[str] = set()
    for overlay in OVERLAYS:
        for found in build((overlay, ())):
            text = json.dumps(found, sort_keys=True)
            if text not in seen:
                seen.add(text)
                _check(found, version)


def test_every_combination_is_valid_in_the_oldest_and_the_newest_version(build: Build) -> None:
    different = {
        json.dumps(found, sort_keys=True): found
        for case in COMBINATIONS
        for found in build(case)
        if not _is_custom(found)
    }
    for found in different.values():
        for version in (_versions()[0], _versions()[-1]):
            _check(found, version)


@pytest.mark.usefixtures("build")
def test_priority_classes_are_valid() -> None:
    for found in kustomize(MANIFESTS / "cluster"):
        _check(found, _versions()[-1])


def test_a_wrong_key_would_be_found(build: Build) -> None:
    found = json.loads(json.dumps(build(("quickstart", ()))[-1]))
    found["spec"]["selectr"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, _versions()[-1], strict=True)


def test_nothing_names_a_namespace(objects: list[Object]) -> None:
    assert [found for found in objects if "namespace" in found["metadata"]] == []


def test_no_two_objects_have_the_same_name(objects: list[Object]) -> None:
    names = [(found["apiVersion"], found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(names) == len(set(names))


def test_custom_resources_come_from_components_alone(build: Build) -> None:
    for overlay in OVERLAYS:
        assert [found for found in build((overlay, ())) if _is_custom(found)] == []


def test_every_component_is_in_a_combination() -> None:
    used = {name for _, components in COMBINATIONS for name in components}
    for overlay in OVERLAYS:
        text = (MANIFESTS / "overlays" / overlay / "kustomization.yaml").read_text("utf-8")
        used |= {
            line.rpartition("/")[2] for line in text.splitlines() if "components/" in line and "- " in line
        }
    there = {path.parent.name for path in (MANIFESTS / "components").glob("*/kustomization.yaml")}
    assert there <= used
