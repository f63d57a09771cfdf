"""Generates docs/config.md and docs/metrics.md from the code. ``--check`` only says if they are in sync."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from headrace.config.docs import config_markdown
from headrace.metrics import ServiceMetrics

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("sampler", "learner", "paramserver", "replay")

_METRICS_INTRODUCTION = """\
# Metrics

Each process serves its metrics in the Prometheus text format. In a local run the ports are in
`runs/<run>/services/<service>-<n>.json` (`metrics_port`). Counters end in `_total` when scraped; a histogram
has `_bucket`, `_sum` and `_count`. The usual `process_*` metrics (memory, CPU, open files) are there as well.
Labels are bounded: never a fragment id, never an incarnation.

This page is made by `make docs`. Don't edit it.
"""


def metrics_classes(service: str) -> list[type[ServiceMetrics]]:
    """Classes of collectors that a service's metrics module declares, in the order of the source."""
    module = importlib.import_module(f"services.{service}.metrics")
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, ServiceMetrics)
        and value.__module__ == module.__name__
    ]


def collectors_of(kind: type[ServiceMetrics]) -> list[MetricWrapperBase]:
    """Collectors that a process of this kind serves, in the order they are declared."""
    metrics = kind(CollectorRegistry())
    return [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]


def metrics_markdown() -> str:
    """Text of docs/metrics.md."""
    lines = [_METRICS_INTRODUCTION, "## Every process", "", *_table(collectors_of(ServiceMetrics))]
    for service in SERVICES:
        for kind in metrics_classes(service):
            title = (kind.__doc__ or service).split("\n")[0].removeprefix("All collectors of ").rstrip(".")
            own = collectors_of(kind)[len(collectors_of(kind.__mro__[1])) :]
            lines += [f"## {title[0].upper()}{title[1:]}", "", *_table(own)]
    return "\n".join(lines).rstrip() + "\n"


def _table(collectors: list[MetricWrapperBase]) -> Iterator[str]:
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for collector in collectors:
        description = next(iter(collector.describe()))
        name = f"{description.name}_total" if description.type == "counter" else description.name
        labels = ", ".join(f"`{label}`" for label in collector._labelnames)
        yield f"| `{name}` | {description.type} | {labels} | {description.documentation} |"
    yield ""


def main() -> int:
    """Write both pages, or compare them with what is there (exit status 1: they differ)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if anything would change")
    check, status = parser.parse_args().check, 0
    for name, text in (("docs/config.md", config_markdown()), ("docs/metrics.md", metrics_markdown())):
        path = ROOT / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            print(f"{name}: not what the code says; run `make docs`", file=sys.stderr)
            status = 1
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{name}: updated")
    return status


if __name__ == "__main__":
    sys.exit(main())
