"""The work of the replay benchmark, and how a buffer is timed at it. Standard library and numpy only.

Each system runs in a process of its own, as ``python -P -m MODULE SYSTEM --work JSON``, and prints its result
as the last line of its output.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
PRIORITY_EXPONENT, IMPORTANCE_EXPONENT = 0.6, 0.4


@dataclass(frozen=True, slots=True)
class ReplayWork:
    """A full buffer of ``items`` transitions with ``observation`` float32 each, used ``call`` at a time."""

    items: int = 1_000_000
    call: int = 256
    calls: int = 1000
    observation: int = 4
    seed: int = 1

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


class Buffer(Protocol):
    """What is timed."""

    def add(self) -> None:
        """Add ``call`` transitions."""
        ...

    def sample(self) -> None:
        """Draw ``call`` transitions, with importance weights where priorities are known."""
        ...

    def update(self) -> None:
        """Give new priorities to what was drawn last."""
        ...


def make_columns(work: ReplayWork) -> dict[str, Array]:
    """One call's transitions, ``[call, ...]``."""
    rng = np.random.default_rng(work.seed)
    return {
        "observation": rng.standard_normal((work.call, work.observation)).astype(np.float32),
        "next_observation": rng.standard_normal((work.call, work.observation)).astype(np.float32),
        "action": rng.integers(0, 2, work.call),
        "reward": rng.standard_normal(work.call).astype(np.float32),
        "terminated": rng.random(work.call) < 0.01,
    }


def time_buffer(buffer: Buffer, work: ReplayWork, *, prioritized: bool) -> dict[str, float]:
    """Fill the buffer once over; then the median microseconds of a call, by operation."""
    for _ in range(-(-work.items // work.call)):
        buffer.add()
    for _ in range(10):
        buffer.sample()
        if prioritized:
            buffer.update()
    operations: dict[str, Callable[[], None]] = {"add": buffer.add, "sample": buffer.sample}
    if prioritized:
        operations["update"] = buffer.update
    seconds: dict[str, list[float]] = {name: [] for name in operations}
    for _ in range(work.calls):
        for name, operation in operations.items():
            began = time.perf_counter()
            operation()
            seconds[name].append(time.perf_counter() - began)
    return {name: 1e6 * float(np.median(values)) for name, values in seconds.items()}


def serve(systems: dict[str, Callable[[ReplayWork], Buffer]], prioritized: frozenset[str]) -> None:
    """Time the system that the command line names and say the result, in one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("system", choices=sorted(systems))
    parser.add_argument("--work", default="{}", help="JSON, the fields of ReplayWork")
    arguments = parser.parse_args()
    work = ReplayWork(**json.loads(arguments.work))
    buffer = systems[arguments.system](work)
    times = time_buffer(buffer, work, prioritized=arguments.system in prioritized)
    print(json.dumps(times), flush=True)
