"""What rules and dashboards ask Prometheus, and what there is to be asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from headrace.metrics import ServiceMetrics
from scripts.generate_docs import SERVICES, metrics_classes

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules"
RULE_TESTS = ROOT / "deploy" / "prometheus" / "tests"
DASHBOARDS = sorted((ROOT / "deploy/k8s/components/grafana/dashboards").glob("*.json"))

TARGET_LABELS = frozenset({"namespace", "pod", "component", "job", "instance"})
FOREIGN = {
    "up": frozenset[str](),
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "reason"}),
    "process_start_time_seconds": frozenset[str](),
    "process_cpu_seconds_total": frozenset[str](),
    "process_resident_memory_bytes": frozenset[str](),
}
"""Series that Prometheus and its client library make."""

_NAMES = "|".join(["headrace[A-Za-z0-9_:]+", *FOREIGN])
_SELECTOR = re.compile(rf"(?<![\w:])({_NAMES})(?![\w:])(\{{[^}}]*\}})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Selector:
    """One series that is asked for: its name, and its matchers as pairs of label and value."""

    name: str
    text: str
    matchers: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Known:
    """Labels of each series by its name in PromQL, and the values that labels have from the start."""

    labels: dict[str, frozenset[str]] = field(default_factory=lambda: dict(FOREIGN))
    values: dict[tuple[str, str], set[str]] = field(default_factory=dict)


def selectors(expression: str) -> list[Selector]:
    """All series that an expression asks for."""
    return [
        Selector(match[1], match[0], tuple(_MATCHER.findall(match[2] or "")))
        for match in _SELECTOR.finditer(expression)
    ]


def grouping_labels(expression: str) -> set[str]:
    """Labels that an expression sums or joins by."""
    parts = [label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")]
    return {label for label in parts if label}


def rules(name: str) -> list[dict[str, Any]]:
    """All rules of a file, in order."""
    document = yaml.safe_load((RULES / name).read_text("utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def recorded() -> dict[str, str]:
    """Expressions of the recording rules by name."""
    return {rule["record"]: rule["expr"] for rule in rules("recording.yaml")}


def alerts() -> dict[str, dict[str, Any]]:
    """Alerting rules by name."""
    return {rule["alert"]: rule for rule in rules("alerts.yaml")}


def dashboard(path: Path) -> dict[str, Any]:
    """A dashboard as Grafana loads it."""
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def panels(path: Path) -> list[dict[str, Any]]:
    """Its panels, without headings."""
    return [panel for panel in dashboard(path)["panels"] if panel["type"] != "row"]


def expressions(path: Path) -> Iterator[tuple[str, str]]:
    """Title of the panel and expression, of every query of a dashboard."""
    for panel in panels(path):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def known_series() -> Known:
    """What the processes' own collectors say they serve, and what is recorded of it."""
    known = Known()
    for kind in (ServiceMetrics, *(one for service in SERVICES for one in metrics_classes(service))):
        metrics = kind(CollectorRegistry())
        for family in metrics.registry.collect():
            _add_family(known, metrics, family)
    for name in recorded():
        known.labels[name] = frozenset()
    return known


def _add_family(known: Known, metrics: ServiceMetrics, family: Any) -> None:
    if not family.name.startswith("headrace_"):
        return
    collector = next(one for one in vars(metrics).values() if getattr(one, "_name", "") == family.name)
    labels = frozenset(collector._labelnames)
    names = {
        "counter": [f"{family.name}_total"],
        "histogram": [f"{family.name}_sum", f"{family.name}_count"],
    }.get(family.type, [family.name])
    for name in names:
        known.labels[name] = labels
    if family.type == "histogram":
        known.labels[f"{family.name}_bucket"] = labels | {"le"}
    for sample in family.samples:
        for label, value in sample.labels.items():
            known.values.setdefault((names[0], label), set()).add(value)
