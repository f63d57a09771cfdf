"""Client channels: one connection each, so that a full data pipe never delays parameters."""

from __future__ import annotations

import ipaddress

import grpc

from headrace.rpc.credentials import Credentials, process_credentials
from headrace.rpc.secured_channel import SecuredChannel

MAX_MESSAGE_BYTES = 2 * 2**20
"""Largest message that any end sends or takes: twice what our own senders write at most."""

KEEPALIVE_S = 20
"""Idle seconds after which a client asks whether the peer is still there."""

CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Our own Backoff decides when to call again; the channel underneath must be ready by then.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name this is how long one attempt to connect may take; a busy peer needs more
    # than its backoff, and a refused connection is tried again at once all the same.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A pod that was started again has another address; it must be found by its name without delay.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # Of several addresses behind a name (relays) not everybody takes the first.
    (
        "grpc.service_config",
        '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}',
    ),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)


def open_channel(address: str, credentials: Credentials | None = None) -> grpc.Channel:
    """A channel of its own to ``host:port``. Connects lazily; close it when done.

    ``credentials`` None: those of this process.
    """
    own = process_credentials() if credentials is None else credentials
    if own.with_tls or own.with_token:
        return SecuredChannel(address, own, CHANNEL_OPTIONS)
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def is_loopback(address: str) -> bool:
    """Whether ``host:port`` surely is this machine: bytes sent there never cross a network."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name; what it stands for may change
        return False
