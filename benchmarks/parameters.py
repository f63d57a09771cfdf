"""How long it takes from a learner's publish until every sampler could act with the new version.

    python -P -m benchmarks.parameters [--megabytes 0.3 4 32] [--watchers 1 4 16] [--relays 0 1]
        [--versions 40] [--crowd 500] [--quick] [--json FILE]

Learner, parameter server, relays and each watcher are processes of their own on this machine, with the
malloc settings of every service; with ``--relays 1`` watchers watch a relay of the parameter server. One
version at a time: the clock runs from the call of ``publish`` (encoding included) until a watcher has the
decoded, verified arrays; ``issued`` is when ``publish`` returned.
All processes read the same monotonic clock of this one machine. At the end, ``--crowd`` watchers at one
relay: how soon all of them have a version, and what each costs the relay in memory.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.parameter_crowd import Crowd, measure_crowd, watch_in_a_crowd
from benchmarks.parameter_processes import DEADLINE_S, Servers, servers, start
from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.rpc.handshake import Handshake
from headrace.types import PolicyVersion, TrainingReport

WARM_UP_VERSIONS = 5
CROWD_MEGABYTES = 0.3


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds over all versions; ``all`` is until the last watcher has it, ``each`` until any one."""

    megabytes: float
    relays: int
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


def measure(chain: Servers, relays: int, megabytes: float, watchers: int, versions: int) -> Latency:
    """Publish ``versions`` versions of one size, one after the other, to so many watchers of the parameter
    server (``relays`` 0), or of the ``relays``-th relay behind it.
    """
    handshake = chain.settings.handshake("learner")
    client = PublishClient(chain.chain[0].address, handshake)
    address = chain.chain[relays].address
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
    return Latency(megabytes, relays, watchers, versions, *percentiles)


def ms(times_s: list[float], percentile: float) -> float:
    """A percentile in milliseconds."""
    return round(float(np.percentile(times_s, percentile)) * 1e3, 2)


def run(sizes: list[float], watchers: list[int], relays: list[int], versions: int) -> list[Latency]:
    """Every size against every number of watchers, in turns directly and behind relays."""
    with servers(max(relays)) as chain:
        return [
            measure(chain, hops, size, count, versions)
            for size in sizes
            for count in watchers
            for hops in relays
        ]


def show(results: list[Latency], crowd: Crowd | None) -> None:
    """Print both tables."""
    print(
        f"{'MB':>6} {'relays':>6} {'watchers':>8} {'issued p50/p99 ms':>20} {'each p50/p99 ms':>18} "
        f"{'all p50/p99 ms':>18}"
    )
    for r in results:
        print(
            f"{r.megabytes:6.1f} {r.relays:6d} {r.watchers:8d} "
            f"{r.issued_p50_ms:11.1f} {r.issued_p99_ms:8.1f} "
            f"{r.each_p50_ms:9.1f} {r.each_p99_ms:8.1f} {r.all_p50_ms:9.1f} {r.all_p99_ms:8.1f}"
        )
    if crowd is not None:
        print(
            f"{crowd.watchers} watchers at one relay, {crowd.megabytes} MB: all have a version after "
            f"{np.median(crowd.all_s):.2f} s (median), {max(crowd.all_s):.2f} s (largest of "
            f"{crowd.versions}); the relay took {crowd.relay_bytes / 1e6:.1f} MB before, "
            f"{crowd.peak_bytes / 1e6:.1f} MB at its peak: {crowd.watcher_bytes / 1e3:.0f} kB a watcher, "
            f"{crowd.relay_cpu_s} s of CPU a version"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, nargs="*", default=[0.3, 4, 32])
    parser.add_argument("--watchers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--relays", type=int, nargs="+", default=[0, 1], help="0: watch the paramserver")
    parser.add_argument("--versions", type=int, default=40)
    parser.add_argument("--crowd", type=int, default=500, help="watchers at one relay at the end; 0: none")
    parser.add_argument("--quick", action="store_true", help="little of everything: only shows that it works")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--watch", nargs=3, metavar=("ADDRESS", "RUN_ID", "DIGEST"), help=argparse.SUPPRESS)
    parser.add_argument("--crowd-of", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.watch:
        watch(*arguments.watch)
        return
    if arguments.crowd_of:
        count, *place = arguments.crowd_of
        watch_in_a_crowd(int(count), *place)
        return
    sizes, watchers, versions, crowd_size = (
        ([0.3], [1], 3, 20)
        if arguments.quick
        else (arguments.megabytes, arguments.watchers, arguments.versions, arguments.crowd)
    )
    results = run(sizes, watchers, arguments.relays, versions)
    crowd = None
    if crowd_size:
        with servers(1, max_watchers=crowd_size + 1) as chain:
            crowd = measure_crowd(chain, CROWD_MEGABYTES, crowd_size, versions)
    show(results, crowd)
    if arguments.json:
        found = {"latency": [asdict(r) for r in results], "crowd": crowd and asdict(crowd)}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
