"""Bytes that this process's TCP connections have carried, as the kernel counts them (Linux)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

_TCP_INFO_BYTES = 256
_RECEIVED_AT, _SENT_AT = 128, 200  # tcpi_bytes_received and tcpi_bytes_sent of struct tcp_info


@dataclass(frozen=True, slots=True)
class Carried:
    """Payload bytes, retransmitted ones included."""

    sent: int = 0
    received: int = 0

    def __add__(self, other: Carried) -> Carried:
        return Carried(self.sent + other.sent, self.received + other.received)

    def __sub__(self, other: Carried) -> Carried:
        return Carried(self.sent - other.sent, self.received - other.received)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes to and from one peer's port, and of all other connections together."""

    peer: Carried
    others: Carried

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.peer - other.peer, self.others - other.others)


def traffic(peer_port: int) -> Traffic:
    """What all connections that are open now have carried. Those that were closed are forgotten."""
    peer = others = Carried()
    for connection in _connections():
        with connection, suppress(OSError):  # OSError: it has just been closed, or only listens
            port = connection.getpeername()[1]
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            carried = Carried(
                struct.unpack_from("=Q", info, _SENT_AT)[0], struct.unpack_from("=Q", info, _RECEIVED_AT)[0]
            )
            if port == peer_port:
                peer += carried
            else:
                others += carried
    return Traffic(peer, others)


def _connections() -> Iterator[socket.socket]:
    """Copies of this process's TCP sockets."""
    for name in os.listdir("/proc/self/fd"):
        copy = -1
        with suppress(OSError):  # it has just been closed
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                copy = os.dup(int(name))
        if copy < 0:
            continue
        found = socket.socket(fileno=copy)
        if found.type == socket.SOCK_STREAM and found.family in (socket.AF_INET, socket.AF_INET6):
            yield found
        else:
            found.close()
