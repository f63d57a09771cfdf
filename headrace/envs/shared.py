"""The memory that the lanes and their worker processes share, and the bytes they say to each other.

Observations, actions, rewards and flags never pass a pipe: both sides map the same unnamed file, laid
out by the same rule. It disappears with the last process that maps it, however that ends.

The socket carries one command byte at a time and one reply to each: ``.`` (all well), or ``J``, a
big-endian uint32 and that many bytes of JSON ``{"began": [lane], "faults": [[lane, reason, detail]]}``.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import struct
import tempfile
from typing import Any

import numpy as np

from headrace.envs.backend import LaneArrays, LaneFault, Report
from headrace.envs.spec import EnvironmentSpec
from headrace.types import Array

STEP_ALL, STEP_SOME, BEGIN, REBUILD, QUIT = b"A", b"S", b"B", b"R", b"Q"
_ALIGNMENT = 64
_REST_S = 10.0  # for the rest of a reply whose first byte is here
_LENGTH = struct.Struct(">I")


class SharedBlock:
    """Arrays over one mapped file: those of the lanes, and those that steer the workers."""

    def __init__(self, fd: int, spec: EnvironmentSpec, num_lanes: int, num_workers: int) -> None:
        """Map ``fd``, which :func:`create` made with the same spec and counts."""
        memory = mmap.mmap(fd, block_bytes(spec, num_lanes, num_workers))
        arrays: dict[str, Array] = {}
        for name, dtype, shape, offset in _layout(spec, num_lanes, num_workers):
            flat: Array = np.frombuffer(memory, dtype, math.prod(shape), offset)
            arrays[name] = flat.reshape(shape)
        self.lanes = LaneArrays(
            {leaf.path: arrays[f"observation:{leaf.path}"] for leaf in spec.observation.leaves},
            arrays["reward"],
            arrays["terminated"],
            arrays["truncated"],
        )
        self.actions = {leaf.path: arrays[f"action:{leaf.path}"] for leaf in spec.action.leaves}
        self.seeds = arrays["seeds"]  # [B] int64, for REBUILD
        self.chosen = arrays["chosen"]  # [B] bool, the lanes a command is about
        self.marks = arrays["marks"]  # [workers, 2] int64: lane at work or -1, number of calls

    def part(self, lanes: range) -> LaneArrays:
        """The lanes' arrays of one worker: views."""
        rows = slice(lanes.start, lanes.stop)
        return LaneArrays(
            {path: array[rows] for path, array in self.lanes.observation.items()},
            self.lanes.reward[rows],
            self.lanes.terminated[rows],
            self.lanes.truncated[rows],
        )


def create(spec: EnvironmentSpec, num_lanes: int, num_workers: int) -> int:
    """Make the file, zeroed and without a name, and return its descriptor."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryFile(dir=folder) as file:
        os.ftruncate(file.fileno(), block_bytes(spec, num_lanes, num_workers))
        return os.dup(file.fileno())


def block_bytes(spec: EnvironmentSpec, num_lanes: int, num_workers: int) -> int:
    """Size of the file."""
    _, dtype, shape, offset = _layout(spec, num_lanes, num_workers)[-1]
    return offset + math.prod(shape) * np.dtype(dtype).itemsize


def _layout(
    spec: EnvironmentSpec, num_lanes: int, num_workers: int
) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Name, dtype, shape and offset of every array."""
    fields = [
        (f"observation:{leaf.path}", leaf.dtype, (num_lanes, *leaf.shape)) for leaf in spec.observation.leaves
    ]
    fields += [(f"action:{leaf.path}", leaf.dtype, (num_lanes, *leaf.shape)) for leaf in spec.action.leaves]
    fields += [(name, "float64", (num_lanes,)) for name in ("reward",)]
    fields += [(name, "bool", (num_lanes,)) for name in ("terminated", "truncated", "chosen")]
    fields += [("seeds", "int64", (num_lanes,)), ("marks", "int64", (num_workers, 2))]
    placed, offset = [], 0
    for name, dtype, shape in fields:
        placed.append((name, dtype, shape, offset))
        size = math.prod(shape) * np.dtype(dtype).itemsize
        offset += -(-size // _ALIGNMENT) * _ALIGNMENT
    return placed


def send_json(connection: socket.socket, value: Any, prefix: bytes = b"") -> None:
    """Send ``value`` as length and JSON."""
    text = json.dumps(value).encode()
    connection.sendall(prefix + _LENGTH.pack(len(text)) + text)


def receive_json(connection: socket.socket) -> Any:
    """Receive what :func:`send_json` sent after its prefix; ConnectionError if the other end is gone."""
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    return json.loads(_receive(connection, length))


def send_report(connection: socket.socket, report: Report, *, expected: int) -> None:
    """Reply to a command: one byte if nothing failed and ``expected`` lanes began."""
    if not report.faults and len(report.began) == expected:
        connection.sendall(b".")
        return
    faults = [(fault.lane, fault.reason, fault.detail) for fault in report.faults]
    send_json(connection, {"began": report.began, "faults": faults}, prefix=b"J")


def receive_report(connection: socket.socket, lanes: range, began: list[int]) -> Report | None:
    """A worker's reply, its lane numbers made global; ``began`` is what a bare reply stands for.

    None if the worker is gone. TimeoutError if nothing has come within the socket's timeout.
    """
    report = Report()
    try:
        head = connection.recv(1)
        if head == b".":
            report.began = began
            return report
        if not head:
            return None
        connection.settimeout(_REST_S)
        plain = receive_json(connection)
    except ConnectionError:
        return None
    report.began = [lanes[lane] for lane in plain["began"]]
    report.faults = [LaneFault(lanes[lane], reason, detail) for lane, reason, detail in plain["faults"]]
    return report


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("the other end is gone")
        parts += part
    return bytes(parts)
