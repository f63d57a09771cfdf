"""Blobs in pieces of at most 1 MiB: cut at the sender, put together and hashed at the receiver."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from headrace.checkpoint.blob import Blob
from headrace.errors import ChecksumError, InvalidDataError
from headrace.v1 import parameters_pb2

CHUNK_BYTES = 2**20 - 64
"""Data bytes of one piece; with its envelope the message stays at or under 1 MiB."""

MAX_BLOB_BYTES = 2**32
"""Longest blob that a receiver takes."""

ACTING = parameters_pb2.BLOB_KIND_ACTING
TRAINING = parameters_pb2.BLOB_KIND_TRAINING
VECTOR = parameters_pb2.BLOB_KIND_VECTOR
STATE = parameters_pb2.BLOB_KIND_STATE

_KINDS = (ACTING, TRAINING, VECTOR, STATE)


def manifest_of(kind: parameters_pb2.BlobKind, blob: Blob) -> parameters_pb2.BlobManifest:
    """Announces ``blob``."""
    return parameters_pb2.BlobManifest(kind=kind, nbytes=blob.nbytes, sha256=blob.sha256)


def chunks_of(
    kind: parameters_pb2.BlobKind, blob: Blob, piece_bytes: int = CHUNK_BYTES
) -> Iterator[parameters_pb2.BlobChunk]:
    """The pieces of ``blob`` in order; each is copied out only when asked for."""
    view = memoryview(blob.data)
    for offset in range(0, blob.nbytes, piece_bytes):
        data = bytes(view[offset : offset + piece_bytes])
        yield parameters_pb2.BlobChunk(kind=kind, offset=offset, data=data)


class BlobAssembler:
    """Puts announced blobs together again. Nothing comes out before every hash matched.

    Invariant: it holds at most the announced bytes.
    """

    def __init__(self, manifests: Iterable[parameters_pb2.BlobManifest]) -> None:
        self._incoming: dict[int, _Incoming] = {}
        for manifest in manifests:
            if manifest.kind not in _KINDS or manifest.kind in self._incoming:
                raise InvalidDataError(f"blob of kind {manifest.kind} is unknown or announced twice")
            if manifest.nbytes > MAX_BLOB_BYTES:
                raise InvalidDataError(f"a blob of {manifest.nbytes} bytes is over {MAX_BLOB_BYTES} bytes")
            self._incoming[manifest.kind] = _Incoming(manifest)

    def feed(self, chunk: parameters_pb2.BlobChunk) -> None:
        """Take the next piece. Raises InvalidDataError if it is not the expected one."""
        incoming = self._incoming.get(chunk.kind)
        if incoming is None:
            raise InvalidDataError(f"a piece of a blob of kind {chunk.kind}, which was not announced")
        incoming.feed(chunk)

    @property
    def complete(self) -> bool:
        """Whether every announced byte is there."""
        return all(incoming.missing == 0 for incoming in self._incoming.values())

    def take(self, kind: parameters_pb2.BlobKind) -> Blob | None:
        """The blob of that kind; None if it was not announced.

        Raises ChecksumError if its hash differs, InvalidDataError if bytes are missing.
        """
        incoming = self._incoming.get(kind)
        return None if incoming is None else incoming.take()


class _Incoming:
    """One blob on its way in; hashed while it arrives."""

    def __init__(self, manifest: parameters_pb2.BlobManifest) -> None:
        self._manifest = manifest
        self._pieces: list[bytes] = []
        self._received = 0
        self._hash = hashlib.sha256()

    @property
    def missing(self) -> int:
        return self._manifest.nbytes - self._received

    def feed(self, chunk: parameters_pb2.BlobChunk) -> None:
        if chunk.offset != self._received or not 0 < len(chunk.data) <= self.missing:
            raise InvalidDataError(
                f"expected the piece at byte {self._received} of {self._manifest.nbytes}, "
                f"got {len(chunk.data)} bytes at {chunk.offset}"
            )
        self._pieces.append(chunk.data)
        self._received += len(chunk.data)
        self._hash.update(chunk.data)

    def take(self) -> Blob:
        if self.missing:
            raise InvalidDataError(f"the blob ended {self.missing} bytes early")
        digest = self._hash.hexdigest()
        if digest != self._manifest.sha256:
            raise ChecksumError(
                f"the blob's sha256 is {digest[:12]}..., announced was {self._manifest.sha256[:12]}..."
            )
        data = b"".join(self._pieces)
        self._pieces.clear()
        return Blob(data, digest)
