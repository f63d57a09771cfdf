"""The metrics endpoint answers scrapers, whoever else is connected, and holds nobody for long."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import ExitStack

import hostile
import pytest
from prometheus_client import CollectorRegistry, Counter

from headrace.local.scrape import fetch
from headrace.metrics_server import MAX_CONNECTIONS, MetricsServer

WAIT_S = 30.0


def make_server(**options: float) -> MetricsServer:
    registry = CollectorRegistry()
    Counter("headrace_things", "Things.", registry=registry).inc(3)
    return MetricsServer("127.0.0.1", 0, registry, **options)


def scraped(server: MetricsServer) -> float:
    samples = fetch("127.0.0.1", server.port, timeout_s=WAIT_S)
    assert samples is not None
    return samples.total("headrace_things_total")


def exchange(server: MetricsServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as peer:
        peer.sendall(request)
        return b"".join(iter(lambda: peer.recv(65536), b""))


def test_prometheus_may_choose_its_format() -> None:
    server = make_server()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        assert b"# EOF" in response.read()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"DELETE / HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/2.0\r\n\r\n", b"400"),
        (b"\x00\xff\x16\x03\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 20_000, b"431"),
    ],
)
def test_anything_but_a_plain_get_is_refused(request_: bytes, status: bytes) -> None:
    assert exchange(make_server(), request_).split(b" ")[1] == status


def test_more_slow_connections_than_there_are_places_keep_no_scraper_out() -> None:
    server = make_server(deadline_s=WAIT_S)
    address = f"127.0.0.1:{server.port}"
    with hostile.half_open(address, 4 * MAX_CONNECTIONS):
        assert scraped(server) == 3.0


def test_a_connection_that_drips_is_cut_at_its_deadline() -> None:
    server = make_server(deadline_s=0.3)
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as peer:
        peer.sendall(b"G")
        try:
            said = peer.recv(1)
        except ConnectionResetError:
            said = b""
    assert said == b""
    assert scraped(server) == 3.0


@pytest.mark.parametrize("attack", list(hostile.RAW))
def test_it_survives_what_is_no_http(attack: str) -> None:
    server = make_server()
    hostile.RAW[attack](f"127.0.0.1:{server.port}")
    assert scraped(server) == 3.0


def test_one_thread_serves_all() -> None:
    server = make_server()
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S))
        assert scraped(server) == 3.0
        assert threading.active_count() == before
