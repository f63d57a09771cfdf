"""Shards of replay that are served, and clients of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from replay_nodes import MAX_BYTES, OWN, Connect, Node, Serve, hot_shard, serve_shard

from headrace.clients.shard import ShardClient


@pytest.fixture
def served() -> Iterator[Serve]:
    """Serves a shard (none: a hot one of 64 items) until the test is over."""
    nodes: list[Node] = []

    def make(shard: Any = None, **more: Any) -> Node:
        nodes.append(serve_shard(hot_shard(seed=len(nodes)) if shard is None else shard, **more))
        return nodes[-1]

    yield make
    for node in nodes:
        node.server.stop(0.0)


@pytest.fixture
def connect_shard() -> Iterator[Connect]:
    """Connects to a shard until the test is over."""
    clients: list[ShardClient] = []

    def make(address: str, **changes: Any) -> ShardClient:
        options: dict[str, Any] = {"handshake": OWN, "max_bytes": MAX_BYTES, **changes}
        clients.append(ShardClient(address, options.pop("handshake"), **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
