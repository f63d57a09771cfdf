"""Objects of other projects: the structure they must have, and what they name is there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from manifests import MANIFESTS, ROOT, Build, Object, of_kind, pod, workloads


def _metric_names() -> dict[str, tuple[str, ...]]:
    """Every metric as it is scraped, with its labels."""
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {}
    for service in module.SERVICES:
        for kind in module.metrics_classes(service):
            for collector in module.collectors_of(kind):
                description = next(iter(collector.describe()))
                ending = "_total" if description.type == "counter" else ""
                found[f"{description.name}{ending}"] = tuple(collector._labelnames)
    return found


@pytest.fixture
def scaled(build: Build) -> Object:
    (found,) = of_kind(build(("quickstart", ("keda", "prometheus-operator", "grafana"))), "ScaledObject")
    return found


def _formula(scaled: Object, waiting: float, throttled: float) -> float:
    text = scaled["spec"]["advanced"]["scalingModifiers"]["formula"]
    condition = re.fullmatch(
        r"throttled > ([\d.]+) \? ([\d.]+) : "
        r"\(waiting > ([\d.]+) && throttled < ([\d.]+) \? ([\d.]+) : ([\d.]+)\)",
        text,
    )
    assert condition is not None, text
    too_many, fewer, starved, calm, more, same = map(float, condition.groups())
    return fewer if throttled > too_many else more if waiting > starved and throttled < calm else same


@pytest.mark.parametrize(
    ("waiting", "throttled", "wanted"),
    [(0.5, 0.0, "more"), (0.5, 0.3, "same"), (0.0, 0.0, "same"), (0.0, 0.9, "fewer"), (0.5, 0.9, "fewer")],
)
def test_samplers_grow_while_the_learner_waits_and_are_not_throttled(
    scaled: Object, waiting: float, throttled: float, wanted: str
) -> None:
    ratio = _formula(scaled, waiting, throttled) / float(
        scaled["spec"]["advanced"]["scalingModifiers"]["target"]
    )
    # An autoscaler leaves alone what is within a tenth of its target.
    assert wanted == ("more" if ratio > 1.1 else "fewer" if ratio < 0.9 else "same")


def test_triggers_ask_for_metrics_that_exist_and_the_formula_for_triggers(scaled: Object) -> None:
    known, names = _metric_names(), set()
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["type"] == "prometheus"
        assert trigger["metadata"].keys() >= {"serverAddress", "query", "threshold"}
        ((metric, label),) = re.findall(r"(headrace_\w+)\{(\w+)[=!]~", trigger["metadata"]["query"])
        assert label in known[metric]
        names.add(trigger["name"])
    assert names == {"waiting", "throttled"}


def test_the_scaled_object_has_a_target_and_bounds(scaled: Object) -> None:
    spec = scaled["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sampler"}
    assert 1 <= spec["minReplicaCount"] <= spec["maxReplicaCount"]
    assert spec["advanced"]["scalingModifiers"]["metricType"] in ("Value", "AverageValue")


def test_the_monitor_finds_every_process_but_redis(build: Build) -> None:
    (monitor,) = of_kind(build(("quickstart", ("keda", "prometheus-operator", "grafana"))), "PodMonitor")
    selector = monitor["spec"]["selector"]
    assert selector["matchLabels"] == {"app.kubernetes.io/name": "headrace"}
    assert selector["matchExpressions"] == [
        {"key": "app.kubernetes.io/component", "operator": "NotIn", "values": ["redis"]}
    ]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for name, workload in workloads(build(("offpolicy", ()))).items():
        ports = [port["name"] for container in pod(workload)["containers"] for port in container["ports"]]
        assert (endpoint["port"] in ports) == (name != "redis")


def test_certificates_lead_from_their_own_authority_to_the_secret_that_is_mounted(build: Build) -> None:
    objects = build(("quickstart", ("relays", "gpu-learner", "tls", "tls-cert-manager")))
    issuers = {found["metadata"]["name"]: found["spec"] for found in of_kind(objects, "Issuer")}
    certificates = {found["spec"]["secretName"]: found["spec"] for found in of_kind(objects, "Certificate")}
    leaf = certificates["headrace-tls"]
    assert leaf["dnsNames"] == ["headrace"]
    assert {"server auth", "client auth"} <= set(leaf["usages"])
    authority = certificates[issuers[leaf["issuerRef"]["name"]]["ca"]["secretName"]]
    assert authority["isCA"] is True
    assert issuers[authority["issuerRef"]["name"]] == {"selfSigned": {}}
    mounted = {
        v["secret"]["secretName"] for v in pod(workloads(objects)["sampler"])["volumes"] if "secret" in v
    }
    assert mounted == {"headrace-tls"}


def test_chaos_strikes_parts_that_exist_one_at_a_time(build: Build) -> None:
    objects = build(("offpolicy", ("chaos-mesh", "network-policy")))
    schedules = of_kind(objects, "Schedule")
    assert schedules
    for schedule in schedules:
        spec = schedule["spec"]
        key = spec["type"][0].lower() + spec["type"][1:]
        assert spec["concurrencyPolicy"] == "Forbid"
        assert len(spec["schedule"].split()) == 5
        assert spec[key]["mode"] == "one"
        assert spec[key]["selector"]["labelSelectors"]["app.kubernetes.io/component"] in workloads(objects)


@pytest.mark.parametrize("path", sorted(MANIFESTS.rglob("kustomization.yaml")), ids=lambda p: p.parent.name)
def test_files_lie_where_the_load_restrictor_lets_them_be_read(path: Path) -> None:
    text = path.read_text("utf-8")
    files: list[Any] = re.findall(r"^\s*- (?:path: )?(\S+\.(?:yaml|py|json|conf))$", text, re.MULTILINE)
    files += re.findall(r"^  - path: (\S+)$", text, re.MULTILINE)
    for name in files:
        assert ".." not in name
        assert (path.parent / name).is_file(), name
