"""How fast fragments get from numpy arrays in one process to checked, acknowledged, credited numpy arrays in
another, against the bare limits of the same machine, both alternately in one run.

    python -P -m benchmarks.transport [--rounds 5] [--megabytes 1000] [--json FILE]

Both processes run with the malloc settings of every service; with HEADRACE_TLS and HEADRACE_TOKEN_FILE set,
over mutual TLS and with a token. Figures, medians over the rounds:

* ``bare``: grpcio client stream, 1 MiB of bytes a message, thrown away on arrival
* ``stream``: the whole pipe, fragments of just under 1 MiB in one message each
* ``checksum``: the same with a CRC-32 at both ends, as where bytes cross a real network
* ``shared``: the same through shared memory, and ``shared4`` with fragments of 4 MiB
* ``copy``: plain copies of 1 MiB in and out of shared memory
* ``small``: the whole pipe, fragments of 20 KB
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.transport_data import DIGEST, Workload, make_pool, renumbered
from benchmarks.transport_receiver import BARE_METHOD, COPY_HEAD, COPY_PLACES, cpu_seconds, take_credentials
from headrace.clients.fragments import FragmentSender
from headrace.local.process import MALLOC_ENVIRONMENT
from headrace.rpc.channel import open_channel
from headrace.rpc.handshake import Handshake

MESSAGE_BYTES = 2**20
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one way to send."""

    mb_per_s: float
    messages_per_s: float
    cpu_s_per_gb: float


class Receiver:
    """The other process. ``module`` is what it runs."""

    def __init__(self, *role: str, module: str = "benchmarks.transport_receiver") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
        self.address = self._read()

    def cpu_seconds(self) -> float:
        """CPU seconds the other process has used."""
        assert self._process.stdin is not None
        self._process.stdin.write("mark\n")
        self._process.stdin.flush()
        return float(self._read())

    def close(self) -> None:
        """Hang up."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def measure(receiver: Receiver, send: Callable[[], None], messages: int, nbytes: float) -> Measurement:
    """Time ``send``, which sends ``messages`` of ``nbytes`` each, and count the CPU of both processes."""
    cpu = cpu_seconds() + receiver.cpu_seconds()
    began = time.perf_counter()
    send()
    took = time.perf_counter() - began
    cpu = cpu_seconds() + receiver.cpu_seconds() - cpu
    total = messages * nbytes
    return Measurement(total / took / 1e6, messages / took, cpu / total * 1e9)


def run_bare(messages: int) -> Measurement:
    """Bare grpcio."""
    receiver = Receiver("bare")
    payload = os.urandom(MESSAGE_BYTES)
    with open_channel(receiver.address) as channel:
        put: Any = channel.stream_unary(BARE_METHOD, request_serializer=None, response_deserializer=None)
        put(iter([payload] * 50))
        result = measure(receiver, lambda: put(iter([payload] * messages)), messages, MESSAGE_BYTES)
    receiver.close()
    return result


def run_pipe(workload: str, messages: int, codec: str = "protobuf", *, checksum: bool = False) -> Measurement:
    """Our whole pipe, from the sender's arrays to the last settlement."""
    receiver = Receiver(workload)
    pool = make_pool(Workload.named(workload))
    sender = FragmentSender(
        receiver.address,
        Handshake(run_id="bench", config_digest=DIGEST),
        pool[0].id.sampler,
        fragment_bytes=pool[-1].nbytes,
        fragment_transitions=pool[0].num_transitions,
        codec=codec,
        slab_bytes=2**27,
        checksum=checksum,
    )
    sender.start()
    sequence = 0

    def send(count: int) -> None:
        nonlocal sequence
        for _ in range(count):
            while sender.acquire(acting_version=lambda: 0, timeout_s=1.0) is None:
                if sender.fatal is not None:
                    raise sender.fatal
            sender.send(renumbered(pool[sequence % len(pool)], sequence))
            sequence += 1

    def send_and_settle(count: int) -> None:
        send(count)
        while sender.unsettled_bytes:
            time.sleep(0.0005)

    send_and_settle(messages // 20 // 8 * 8)
    nbytes = float(np.mean([fragment.nbytes for fragment in pool]))
    result = measure(receiver, lambda: send_and_settle(messages), messages, nbytes)
    sender.drain("done", DEADLINE_S)
    sender.close()
    receiver.close()
    return result


def run_copy(messages: int) -> Measurement:
    """Plain copies through shared memory."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        file.truncate(COPY_HEAD + COPY_PLACES * MESSAGE_BYTES)
        memory = mmap.mmap(file.fileno(), COPY_HEAD + COPY_PLACES * MESSAGE_BYTES)
        receiver = Receiver("copy", file.name, str(MESSAGE_BYTES))
        content = np.frombuffer(memory, np.uint8)
        sources = np.random.default_rng(0).integers(0, 256, (8, MESSAGE_BYTES), np.uint8)

        def send() -> None:
            for index in range(messages):
                turn = index % COPY_PLACES
                begin = COPY_HEAD + turn * MESSAGE_BYTES
                while memory[turn]:
                    os.sched_yield()
                content[begin : begin + MESSAGE_BYTES] = sources[index % 8]
                memory[turn] = 1
            while any(memory[:COPY_PLACES]):
                os.sched_yield()

        result = measure(receiver, send, messages, MESSAGE_BYTES)
        receiver.close()
    return result


def run_rounds(rounds: int, megabytes: int) -> dict[str, list[Measurement]]:
    """Every way in turn, ``rounds`` times."""
    messages = max(160, megabytes // 8 * 8)
    ways: dict[str, Callable[[], Measurement]] = {
        "bare": lambda: run_bare(messages),
        "stream": lambda: run_pipe("large", messages),
        "checksum": lambda: run_pipe("large", messages, checksum=True),
        "shared": lambda: run_pipe("large", 2 * messages, "shared_memory"),
        "shared4": lambda: run_pipe("huge", messages, "shared_memory"),
        "copy": lambda: run_copy(4 * messages),
        "small": lambda: run_pipe("small", 8 * messages),
    }
    results: dict[str, list[Measurement]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            results[name].append(run())
    return results


def summarize(results: dict[str, list[Measurement]]) -> dict[str, Any]:
    """Medians and spreads, and the ratios that have targets. A ratio is the median of the rounds' ratios."""

    def ratio(above: str, below: str, field: str = "mb_per_s") -> float:
        pairs = zip(results[above], results[below], strict=True)
        return float(median(getattr(a, field) / getattr(b, field) for a, b in pairs))

    return {
        "ways": {
            name: {
                field: {"median": median(values), "min": min(values), "max": max(values)}
                for field in Measurement.__slots__
                if (values := [getattr(run, field) for run in runs])
            }
            for name, runs in results.items()
        },
        "ratios": {
            "stream / bare, speed (target 0.80)": ratio("stream", "bare"),
            "stream / bare, CPU (target 1.5 at most)": ratio("stream", "bare", "cpu_s_per_gb"),
            "checksum / bare, speed": ratio("checksum", "bare"),
            "checksum / bare, CPU": ratio("checksum", "bare", "cpu_s_per_gb"),
            "shared / stream, speed (target 5)": ratio("shared", "stream"),
            "shared4 / stream, speed (target 5)": ratio("shared4", "stream"),
            "shared / copy, speed (target 0.4)": ratio("shared", "copy"),
            "shared4 / copy, speed (target 0.4)": ratio("shared4", "copy"),
            "small, fragments/s (target 8,000)": median(run.messages_per_s for run in results["small"]),
        },
        "rounds": {name: [asdict(run) for run in runs] for name, runs in results.items()},
    }


def print_summary(summary: dict[str, Any]) -> None:
    """For people."""
    print(f"{'':10}{'MB/s':>24}{'messages/s':>28}{'CPU s/GB':>22}")
    for name, way in summary["ways"].items():
        cells = [
            f"{value['median']:.{digits}f} ({value['min']:.{digits}f} to {value['max']:.{digits}f})"
            for value, digits in zip(way.values(), (0, 0, 2), strict=True)
        ]
        print(f"{name:10}{cells[0]:>24}{cells[1]:>28}{cells[2]:>22}")
    for name, value in summary["ratios"].items():
        print(f"{name:42}{value:>10,.2f}")


def use_malloc_settings(module: str) -> None:
    """Start ``module`` anew with the malloc settings of every service, unless they are in force."""
    if any(os.environ.get(name) != value for name, value in MALLOC_ENVIRONMENT.items()):
        # malloc reads them when a process starts.
        command = [sys.executable, "-P", "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **MALLOC_ENVIRONMENT})


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Measure the transport of fragments.")
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured")
    parser.add_argument("--megabytes", type=int, default=1000, help="what one measurement sends")
    parser.add_argument("--json", type=Path, help="write everything there")
    arguments = parser.parse_args()
    use_malloc_settings("benchmarks.transport")
    take_credentials()
    summary = summarize(run_rounds(arguments.rounds, arguments.megabytes))
    print_summary(summary)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
