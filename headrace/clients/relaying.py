"""Versions as a relay passes them on: checked, not decoded, and cut into messages once for all watchers."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.checkpoint.blob import Blob
from headrace.clients import messages
from headrace.clients.blobs import ACTING, chunks_of
from headrace.clients.watching import VersionWatch
from headrace.types import PolicyVersion
from headrace.v1 import parameters_pb2

PIECE_BYTES = 256 * 2**10 - 64
"""Data bytes of one message. Each watcher that reads slowly holds up to one message in the transport, so
this, not the size of the version, is what a watcher costs."""


@dataclass(frozen=True, slots=True)
class WholeVersion:
    """One verified version as encoded ``WatchVersionsResponse`` messages: its manifest, then its bytes."""

    version: PolicyVersion
    messages: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(map(len, self.messages))

    @classmethod
    def of(
        cls, manifest: parameters_pb2.VersionManifest, acting: Blob, piece_bytes: int = PIECE_BYTES
    ) -> WholeVersion:
        """Cut ``acting`` into messages of at most ``piece_bytes`` data bytes."""
        wire = parameters_pb2.WatchVersionsResponse
        pieces = [wire(chunk=chunk).SerializeToString() for chunk in chunks_of(ACTING, acting, piece_bytes)]
        first = wire(manifest=manifest).SerializeToString()
        return cls(messages.version_from_proto(manifest.version), (first, *pieces))


class WholeVersionWatch(VersionWatch[WholeVersion]):
    """Keeps the newest version at hand, ready to be passed on."""

    def _make(self, manifest: parameters_pb2.VersionManifest, acting: Blob) -> WholeVersion:
        return WholeVersion.of(manifest, acting)
