"""How long it takes from a learner's publish until every sampler could act with the new version.

    python -P -m benchmarks.parameters [--megabytes 0.3 4 32] [--watchers 1 4] [--versions 40] [--json FILE]

Learner, parameter server and each watcher are processes of their own on this machine, with the malloc
settings of every service. One version at a time: the clock runs from the call of ``publish`` (encoding
included) until a watcher has the decoded, verified arrays; ``issued`` is when ``publish`` returned.
All processes read the same monotonic clock of this one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.config.digest import config_document
from headrace.config.sections import Config
from headrace.local.process import MALLOC_ENVIRONMENT
from headrace.registry import read_records
from headrace.rpc.handshake import Handshake
from headrace.types import PolicyVersion, TrainingReport
from services.paramserver.config import Settings

DEADLINE_S = 120.0
WARM_UP_VERSIONS = 5
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds over all versions; ``all`` is until the last watcher has it, ``each`` until any one."""

    megabytes: float
    watchers: int
    versions: int
    issued_p50_ms: float
    issued_p99_ms: float
    each_p50_ms: float
    each_p99_ms: float
    all_p50_ms: float
    all_p99_ms: float


class Watcher:
    """A watching process; it says when it got each version."""

    def __init__(self, address: str, handshake: Handshake) -> None:
        self._process = start(
            "benchmarks.parameters", "--watch", address, handshake.run_id, handshake.config_digest
        )

    def arrival(self, version: PolicyVersion) -> float:
        """Monotonic time at which it had ``version``."""
        assert self._process.stdout is not None
        number, at = self._process.stdout.readline().split()
        assert int(number) == version.number, f"expected version {version.number}, got {number}"
        return float(at)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(DEADLINE_S)


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of ours with the settings of every service."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **MALLOC_ENVIRONMENT, "PYTHONPATH": str(ROOT)},
    )


def watch(address: str, run_id: str, digest: str) -> None:
    """Body of a watching process: one line a version, until it is ended."""
    watcher = SnapshotWatcher(address, Handshake(run_id, digest, peer="watcher"))
    watcher.start()
    have: PolicyVersion | None = None
    while True:
        snapshot = watcher.wait_newer(have, DEADLINE_S)
        if snapshot is None:
            return
        have = snapshot.version
        print(have.number, time.monotonic(), flush=True)


def measure(address: str, settings: Settings, megabytes: float, watchers: int, versions: int) -> Latency:
    """Publish ``versions`` versions of one size to so many watchers, one after the other."""
    handshake = settings.handshake("learner")
    client = PublishClient(address, handshake)
    parameters = {"weight": np.zeros(int(megabytes * 1e6 / 4), np.float32)}
    fetched = client.fetch(with_training=False)
    base = None if fetched is None else fetched.snapshot.version
    updates = 0 if fetched is None else fetched.report.updates
    processes: list[Watcher] = []
    issued, each, last = [], [], []
    for index in range(WARM_UP_VERSIONS + versions):
        if index == 1:
            processes = [Watcher(address, handshake) for _ in range(watchers)]
            assert base is not None
            for process in processes:
                process.arrival(base)
        updates += 1
        parameters["weight"][0] = updates
        report = TrainingReport(updates, updates, updates, 0, None, None, {})
        began = time.monotonic()
        base = client.publish(base, parameters, None, report, [], timeout_s=DEADLINE_S).version
        answered = time.monotonic()
        arrivals = [process.arrival(base) - began for process in processes]
        if index >= WARM_UP_VERSIONS:
            issued.append(answered - began)
            each += arrivals
            last.append(max(arrivals))
    for process in processes:
        process.close()
    client.close()
    percentiles = [ms(times, q) for times in (issued, each, last) for q in (50, 99)]
    return Latency(megabytes, watchers, versions, *percentiles)


def ms(times_s: list[float], percentile: float) -> float:
    """A percentile in milliseconds."""
    return round(float(np.percentile(times_s, percentile)) * 1e3, 2)


def run(sizes: list[float], watchers: list[int], versions: int) -> list[Latency]:
    """Every size against every number of watchers, on one parameter server."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        document: dict[str, Any] = {
            "environment": {"id": "CartPole-v1"},
            "run": {"stop": {"updates": 10**9}},
            "paramserver": {"checkpoint_every": 10**9},
        }
        config = Config.model_validate(document)
        (run_dir / "config.yaml").write_text(yaml.safe_dump(config_document(config)), "utf-8")
        server = start(
            "services.paramserver",
            *("--config", str(run_dir / "config.yaml"), "--run-dir", folder, "--run-id", "benchmark"),
        )
        try:
            settings = Settings.of(config, run_dir=run_dir, run_id="benchmark")
            address = wait_for_address(run_dir, server)
            return [measure(address, settings, size, n, versions) for size in sizes for n in watchers]
        finally:
            server.terminate()
            server.wait(DEADLINE_S)


def wait_for_address(run_dir: Path, server: subprocess.Popen[str]) -> str:
    """Where the server listens, once it does."""
    deadline = time.monotonic() + DEADLINE_S
    while not (records := read_records(run_dir)):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the parameter server did not start")
        time.sleep(0.05)
    return records[0].address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.3, 4, 32])
    parser.add_argument("--watchers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--versions", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--watch", nargs=3, metavar=("ADDRESS", "RUN_ID", "DIGEST"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.watch:
        watch(*arguments.watch)
        return
    results = run(arguments.megabytes, arguments.watchers, arguments.versions)
    print(
        f"{'MB':>6} {'watchers':>8} {'issued p50/p99 ms':>20} {'each p50/p99 ms':>18} {'all p50/p99 ms':>18}"
    )
    for r in results:
        print(
            f"{r.megabytes:6.1f} {r.watchers:8d} {r.issued_p50_ms:11.1f} {r.issued_p99_ms:8.1f} "
            f"{r.each_p50_ms:9.1f} {r.each_p99_ms:8.1f} {r.all_p50_ms:9.1f} {r.all_p99_ms:8.1f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
