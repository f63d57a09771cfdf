"""Run benchmarks by name: ``python -P -m benchmarks NAME [args]``, or ``all``, one after the other.

Each is a module of its own and says with ``--help`` what it measures and takes.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

BENCHMARKS = (
    "rollout",
    "transport",
    "update",
    "gradient_steps",
    "parameters",
    "replay_core",
    "replay_wire",
    "cold",
    "end_to_end",
    "scale",
    "stragglers",
    "training",
    "soak",
    "kills",
)

GROUPS = {"replay": ("replay_core", "replay_wire", "cold")}


def main(argv: list[str]) -> int:
    """Exit code of the first benchmark that failed, else 0."""
    found = [name for name in BENCHMARKS if find_spec(f"benchmarks.{name}")]
    if not argv or argv[0] not in (*found, *GROUPS, "all"):
        print(f"usage: python -P -m benchmarks NAME|all [args]\nbenchmarks: {', '.join((*found, *GROUPS))}")
        return 0 if argv in (["-h"], ["--help"]) else 2
    name, *arguments = argv
    failed = 0
    for chosen in found if name == "all" else GROUPS.get(name, (name,)):
        print(f"benchmarks.{chosen}", flush=True)
        done = subprocess.run([sys.executable, "-P", "-m", f"benchmarks.{chosen}", *arguments], check=False)
        failed = failed or done.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
