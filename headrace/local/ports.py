"""Ports of a local run.

Free ports are picked below the range from which the system takes the ports of outgoing
connections: there a client that reconnects to a service being restarted could be given that very
port as its own and end up connected to itself.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FIRST_PORT = 15_000
_DEFAULT_EPHEMERAL = 32_768
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ATTEMPTS = 200


def is_free(host: str, port: int) -> bool:
    """Whether ``host:port`` can be listened on right now."""
    return _bind_error(host, port) is None


def port_problem(key: str, host: str, port: int) -> str | None:
    """A sentence about ``host:port`` if it can't be listened on; it starts with the configuration key."""
    error = _bind_error(host, port)
    if error is None:
        return None
    if isinstance(error, socket.gaierror):
        return f"network.host: {host!r} is not an address of this machine: {error.strerror}"
    if error.errno in (98, 48):  # EADDRINUSE on Linux, on macOS
        return f"{key}: port {port} on {host} is taken"
    return f"{key}: cannot listen on {host}:{port}: {error.strerror}"


def pick_port(host: str, rng: random.Random, taken: set[int]) -> int:
    """A free port that isn't in ``taken``; adds it there. OSError if none was found."""
    last = _ephemeral_start() - 1
    for _ in range(_ATTEMPTS):
        port = rng.randint(_FIRST_PORT, last)
        if port not in taken and is_free(host, port):
            taken.add(port)
            return port
    raise OSError(f"no free port found on {host} between {_FIRST_PORT} and {last}")


def _bind_error(host: str, port: int) -> OSError | None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # As the services do: a port in TIME_WAIT is free, one that is listened on is not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        return error
    return None


def _ephemeral_start() -> int:
    try:
        first = int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = _DEFAULT_EPHEMERAL
    return first if first > _FIRST_PORT + 1000 else 65_536
