"""As :mod:`headrace.rpc.secured_channel`, in an event loop: calls carry the credentials as they are now."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from headrace.rpc.channel import CHANNEL_OPTIONS
from headrace.rpc.credentials import NAME_OPTIONS, Credentials, process_credentials

_LIVE_ON_S = 3600.0  # calls on a connection that was replaced may go on for so long


class AsyncChannel:
    """A connection to ``host:port`` that is replaced when the credentials change. Belongs to a loop."""

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        """``credentials`` None: those of this process."""
        self._address = address
        self._credentials = process_credentials() if credentials is None else credentials
        self._channel: grpc.aio.Channel | None = None
        self._generation = 0
        self._ending: set[asyncio.Task[None]] = set()

    def method(self, kind: str, path: str) -> Any:
        """A method whose messages are bytes, to be called once. ``kind`` is e.g. "unary_stream"."""
        identity = self._credentials.current()
        if self._channel is None or self._generation != identity.generation:
            self._replace()
        own: Any = self._channel  # the stubs demand serializers; without them bytes stay as they are
        make = getattr(own, kind)(path)
        return lambda *request, **options: make(*request, metadata=identity.metadata, **options)

    async def close(self) -> None:
        """Close it; calls under way end as cancelled."""
        for task in self._ending:
            task.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close(None)

    def _replace(self) -> None:
        identity = self._credentials.current()
        before, self._generation = self._channel, identity.generation
        own = identity.channel_credentials()
        if own is None:
            self._channel = grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
        else:
            options = (*CHANNEL_OPTIONS, *NAME_OPTIONS)
            self._channel = grpc.aio.secure_channel(self._address, own, options=options)
        if before is not None:
            task = asyncio.ensure_future(before.close(_LIVE_ON_S))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
