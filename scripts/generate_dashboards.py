"""Generates the Grafana dashboards from scripts/dashboards. ``--check`` only says if they are in sync."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dashboards import learner, overview, paramserver, replay, sampler

ROOT = Path(__file__).resolve().parent.parent
# Kustomize reads nothing from outside a component's folder, so this is where they are; Grafana on one machine
# is given the same files (deploy/grafana).
OUTPUT = ROOT / "deploy" / "k8s" / "components" / "grafana" / "dashboards"
DASHBOARDS = tuple(module.DASHBOARD for module in (overview, sampler, learner, paramserver, replay))


def main() -> int:
    """Write them, or compare them with what is there (exit status 1: they differ)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if anything would change")
    check, status = parser.parse_args().check, 0
    wanted = {f"{one.uid}.json": json.dumps(one.to_json(), indent=2) + "\n" for one in DASHBOARDS}
    found = {path.name: path.read_text("utf-8") for path in OUTPUT.glob("*.json")}
    for name in sorted(name for name in wanted | found if wanted.get(name) != found.get(name)):
        path = OUTPUT / name
        if check:
            print(f"{path.relative_to(ROOT)}: not what the code says; run `make dashboards`", file=sys.stderr)
            status = 1
        elif name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name], "utf-8")
            print(f"{path.relative_to(ROOT)}: updated")
        else:
            path.unlink()
            print(f"{path.relative_to(ROOT)}: removed")
    return status


if __name__ == "__main__":
    sys.exit(main())
