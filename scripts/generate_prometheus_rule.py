"""Generates the operator's PrometheusRule from deploy/prometheus/rules. ``--check``: see if it is in sync."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "deploy" / "prometheus" / "rules"
OUTPUT = ROOT / "deploy" / "k8s" / "components" / "prometheus-operator" / "rules.yaml"
FILES = ("recording.yaml", "alerts.yaml")

_HEADER = """\
# Made by `make dashboards` from deploy/prometheus/rules. Don't edit it.
#
# An operator that picks its rules by a label (that of kube-prometheus-stack looks for `release`) needs that
# label here, too: add it with a patch in the overlay.
"""


def prometheus_rule() -> str:
    """Text of the manifest; the groups are those of the rule files, in their order."""
    groups = [
        group for name in FILES for group in yaml.safe_load((RULES / name).read_text("utf-8"))["groups"]
    ]
    for rule in (rule for group in groups for rule in group["rules"]):
        rule["expr"] = " ".join(rule["expr"].split())
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "headrace",
            "labels": {
                "app.kubernetes.io/name": "headrace",
                "app.kubernetes.io/component": "monitoring",
                "app.kubernetes.io/part-of": "headrace",
            },
        },
        "spec": {"groups": groups},
    }
    return _HEADER + yaml.safe_dump(manifest, sort_keys=False, width=120)


def main() -> int:
    """Write it, or compare it with what is there (exit status 1: they differ)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if anything would change")
    text, name = prometheus_rule(), OUTPUT.relative_to(ROOT)
    if OUTPUT.is_file() and OUTPUT.read_text("utf-8") == text:
        return 0
    if parser.parse_args().check:
        print(f"{name}: not what the rules say; run `make dashboards`", file=sys.stderr)
        return 1
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(text, "utf-8")
    print(f"{name}: updated")
    return 0


if __name__ == "__main__":
    sys.exit(main())
