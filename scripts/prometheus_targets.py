"""Prints the processes of a local run as targets for Prometheus (``file_sd_configs``, see deploy/prometheus).

The labels are those of the cluster: ``namespace`` is the run, ``pod`` the process. With a fixed
``network.metrics_port`` the list stays right over restarts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from headrace.registry import read_records


def targets(run_dir: Path, host: str, namespace: str) -> list[dict[str, object]]:
    """One target for each process that has said where its metrics are."""
    return [
        {
            "targets": [f"{host}:{record.metrics_port}"],
            "labels": {"namespace": namespace, "pod": record.name, "component": record.service},
        }
        for record in read_records(run_dir)
        if record.metrics_port
    ]


def main() -> int:
    """Print them; exit status 2: there are none."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a run that is going on")
    parser.add_argument("--host", default="127.0.0.1", help="where Prometheus finds the processes")
    parser.add_argument("--namespace", help="what rules and dashboards call the run; default: its folder")
    arguments = parser.parse_args()
    namespace = arguments.namespace or arguments.run.resolve().name
    found = targets(arguments.run, arguments.host, namespace)
    if not found:
        print(f"{arguments.run}: no process of a run has said where its metrics are", file=sys.stderr)
        return 2
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
