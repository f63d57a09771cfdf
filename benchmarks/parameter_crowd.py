"""Many watchers on one relay: how soon all of them have a version, and what each costs the relay in memory.

Watchers are the product's own, each with a connection of its own, spread over a few processes; they check
the hash of every version and decode it. Part of ``benchmarks.parameters``.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import psutil

from benchmarks.parameter_processes import DEADLINE_S, Server, Servers, start
from benchmarks.processes import PeakMemory, resident_bytes, tree
from headrace.clients.parameters import PublishClient, SnapshotWatcher
from headrace.rpc.handshake import Handshake
from headrace.types import PolicyVersion, TrainingReport

PROCESSES = 4
WARM_UP_VERSIONS = 4


@dataclass(frozen=True, slots=True)
class Crowd:
    """``all_s``: for each version the seconds from the call of ``publish`` until every watcher had it.

    ``relay_cpu_s`` is CPU time of the relay's process, a version. ``relay_bytes`` is its resident memory
    with one watcher that has had ``WARM_UP_VERSIONS`` versions; ``peak_bytes`` the largest with all of
    them, ``watcher_bytes`` what each of them added.
    """

    megabytes: float
    watchers: int
    versions: int
    all_s: tuple[float, ...]
    relay_cpu_s: float
    relay_bytes: int
    peak_bytes: int
    watcher_bytes: int


class CrowdProcess:
    """A process with many watchers; it says when the last of them got each version."""

    def __init__(self, address: str, handshake: Handshake, watchers: int) -> None:
        identity = (handshake.run_id, handshake.config_digest)
        self._process = start("benchmarks.parameters", "--crowd-of", str(watchers), address, *identity)

    def arrival(self, version: PolicyVersion) -> float:
        """Monotonic time at which all of them had ``version``."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, at = line.split()
            if int(number) == version.number:
                return float(at)
        raise RuntimeError(f"a crowd ended before it had version {version.number}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(DEADLINE_S)


def watch_in_a_crowd(watchers: int, address: str, run_id: str, digest: str) -> None:
    """Body of a crowd's process: one line a version that all have, until it is ended."""
    lock = threading.Lock()
    have: dict[int, PolicyVersion] = {}
    said = -1

    def note(index: int) -> None:
        nonlocal said
        snapshot = crowd[index].newest()
        if snapshot is None:
            return
        with lock:
            have[index] = snapshot.version
            all_have = min(version.number for version in have.values())
            if len(have) == watchers and all_have > said:
                said = all_have
                print(said, time.monotonic(), flush=True)

    crowd = [
        SnapshotWatcher(
            address,
            Handshake(run_id, digest, peer=f"watcher-{index}"),
            on_change=lambda index=index: note(index),  # type: ignore[misc]  # mypy wants no default here
        )
        for index in range(watchers)
    ]
    for watcher in crowd:
        watcher.start()
    threading.Event().wait()


class Publisher:
    """Publishes one version after another, all of one size."""

    def __init__(self, servers: Servers, megabytes: float) -> None:
        self._client = PublishClient(servers.chain[0].address, servers.settings.handshake("learner"))
        self._parameters = {"weight": np.zeros(int(megabytes * 1e6 / 4), np.float32)}
        self._updates = 0
        self._base: PolicyVersion | None = None

    def publish(self) -> PolicyVersion:
        """The next one."""
        self._updates += 1
        self._parameters["weight"][0] = self._updates
        report = TrainingReport(self._updates, self._updates, self._updates, 0, None, None, {})
        answer = self._client.publish(self._base, self._parameters, None, report, [], timeout_s=DEADLINE_S)
        self._base = answer.version
        return answer.version

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def measure_crowd(servers: Servers, megabytes: float, watchers: int, versions: int) -> Crowd:
    """Publish ``versions`` versions to so many watchers of the last server, one after the other."""
    relay, handshake = servers.chain[-1], servers.settings.handshake("watcher")
    with ExitStack() as stack:
        publisher = Publisher(servers, megabytes)
        stack.callback(publisher.close)
        first = CrowdProcess(relay.address, handshake, 1)
        stack.callback(first.close)
        for _ in range(WARM_UP_VERSIONS):
            first.arrival(publisher.publish())
        before = _resident(relay)
        memory = stack.enter_context(PeakMemory(relay.pid, interval_s=0.02))
        shares = [watchers // PROCESSES + (index < watchers % PROCESSES) for index in range(PROCESSES)]
        crowds = [CrowdProcess(relay.address, handshake, share) for share in shares if share]
        for crowd in crowds:
            stack.callback(crowd.close)
        for _ in range(WARM_UP_VERSIONS):
            version = publisher.publish()
            for crowd in crowds:
                crowd.arrival(version)
        times, cpu_before = [], _cpu_s(relay)
        for _ in range(versions):
            began = time.monotonic()
            version = publisher.publish()
            times.append(max(crowd.arrival(version) for crowd in crowds) - began)
        cpu_s = _cpu_s(relay) - cpu_before
        peak = max(memory.peak_bytes, _resident(relay))
    return Crowd(
        megabytes,
        watchers,
        versions,
        tuple(round(seconds, 3) for seconds in times),
        round(cpu_s / versions, 3),
        before,
        peak,
        (peak - before) // watchers,
    )


def _resident(server: Server) -> int:
    return sum(map(resident_bytes, tree(server.pid)))


def _cpu_s(server: Server) -> float:
    used = psutil.Process(server.pid).cpu_times()
    return float(used.user + used.system)
