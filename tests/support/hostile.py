"""What a hostile or broken peer may send to a port."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc

WAIT_S = 30.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_S)


def send(address: str, data: bytes) -> None:
    """Send, then read until the other side hangs up, or has nothing more to say for a moment."""
    with connect(address) as peer, contextlib.suppress(OSError):
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        peer.settimeout(1.0)
        while peer.recv(65536):
            pass


def random_bytes(address: str) -> None:
    chance = random.Random(1)
    for length in (1, 24, 300, 70_000):
        send(address, chance.randbytes(length))


def http_1(address: str) -> None:
    send(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    send(address, b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n" + bytes(4096))
    send(address, b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + b"X: y\r\n" * 10_000)


def tls(address: str) -> None:
    """A good TLS client, at a port that may speak none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connect(address) as peer, contextlib.suppress(OSError):
        peer.settimeout(1.0)
        with context.wrap_socket(peer) as secured:
            secured.sendall(PREFACE)
            secured.recv(1)


def bad_frames(address: str) -> None:
    """HTTP/2 that begins well: frames of absurd lengths, of unknown types, on streams that aren't there."""
    chance = random.Random(2)
    absurd = [
        b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(1000),
        b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" * 500,
        b"\x00\x40\x00\x01\x04\x00\x00\x00\x01" + chance.randbytes(0x4000),
        b"\x00\x00\x04\x03\x00\x00\x00\x00\x07" + bytes(4),
    ]
    absurd += [chance.randbytes(200) for _ in range(20)]
    for frame in absurd:
        send(address, PREFACE + SETTINGS + frame)


@contextmanager
def half_open(address: str, number: int = 100) -> Iterator[list[socket.socket]]:
    """Connections on which little or nothing comes: silent ones, and ones that stopped in mid-sentence."""
    beginnings = (b"", b"P", PREFACE[:10], PREFACE, PREFACE + SETTINGS, b"GET /me", b"\x16\x03\x01")
    with ExitStack() as stack:
        peers = [stack.enter_context(connect(address)) for _ in range(number)]
        for index, peer in enumerate(peers):
            with contextlib.suppress(OSError):
                peer.sendall(beginnings[index % len(beginnings)])
        yield peers


def nested(depth: int, *, as_groups: bool) -> bytes:
    """Protobuf in protobuf in protobuf."""
    if as_groups:
        return b"\x0b" * depth + b"\x0c" * depth
    data = b""
    for _ in range(depth):
        data = b"\x0a" + _varint(len(data)) + data
    return data


def garbage() -> list[bytes]:
    """Messages that are none, or none that should be sent."""
    chance = random.Random(3)
    made = [b"", b"\x00", b"\x0a\xff\xff\xff\xff\x0f", b"\xff" * 64, b"\x0a\x05abc", bytes(10_000)]
    made += [nested(10_000, as_groups=True), nested(3_000, as_groups=False)]
    made += [chance.randbytes(length) for length in (1, 7, 50, 1_000, 100_000)]
    made.append(b"\x0a" + _varint(3 * 2**20) + bytes(3 * 2**20))  # larger than any end takes
    return made


def throw(channel: grpc.Channel, method: str) -> list[grpc.StatusCode]:
    """Send each piece of garbage to a method, alone; returns how the calls ended."""
    codes = []
    for message in garbage():
        call: Any = channel.stream_stream(method)(iter([message]), timeout=WAIT_S)
        with contextlib.suppress(grpc.RpcError):
            next(iter(call), None)
        call.cancel()
        codes.append(call.code())
    return codes


RAW: dict[str, Callable[[str], None]] = {
    "random bytes": random_bytes,
    "HTTP/1.1": http_1,
    "TLS": tls,
    "bad frames": bad_frames,
}


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
