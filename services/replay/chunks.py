"""A chunk as it lies in Redis: a fragment's columns, compressed, behind a checksum; and its index entry.

The body is a msgpack head (identity, version, counts, description of the columns), then the columns as the
codec lays them out, so that they can be viewed where they were decompressed to.

LZ4 in block form: on fragments of CartPole it decompresses six times as fast as zstd at level 1, which makes
them only 8 % smaller; and drawing decompresses a chunk for each item.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import lz4.block
import msgpack
import numpy as np
import numpy.typing as npt

from headrace.codec.columns import ALIGNMENT, lay_out, read_description
from headrace.codec.parts import join
from headrace.errors import ChecksumError, CodecError
from headrace.replay.rows import pending_of, valid_of
from headrace.types import PRIORITY, Fragment, FragmentId, PolicyVersion, SamplerIdentity

_START = struct.Struct("<4sI")  # magic, CRC-32 of all that follows
_LENGTHS = struct.Struct("<II")  # of the body before compression, of its head
_HEADER_BYTES = _START.size + _LENGTHS.size
_MAGIC = b"HRC1"
_SLACK_BYTES = 2**20

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ChunkMeta:
    """What the index knows of a chunk: enough to rebuild everything but priorities without reading it.

    ``drawable`` and ``pending`` are masks over its items, packed to bits (``b""``: all, and none): which are
    transitions whose rows are all there, and which wait for the fragment that follows.
    """

    sampler: SamplerIdentity
    sequence: int
    epoch: int
    version: int
    num_transitions: int
    nbytes: int
    drawable: bytes
    pending: bytes

    def masks(self, num_items: int) -> tuple[Mask, Mask]:
        """``drawable`` and ``pending`` ``[num_items]``."""
        drawable = _unpack(self.drawable, num_items) if self.drawable else np.ones(num_items, np.bool_)
        pending = _unpack(self.pending, num_items) if self.pending else np.zeros(num_items, np.bool_)
        return drawable, pending


def pack_chunk(fragment: Fragment) -> bytes:
    """The value of a chunk, without priorities: those live in the service. CodecError for a bad array."""
    laid_out = lay_out({name: array for name, array in fragment.columns.items() if name != PRIORITY})
    identity, version = fragment.id, fragment.policy_version
    head: bytes = msgpack.packb(
        (
            identity.sampler.sampler_id, identity.sampler.incarnation, identity.sequence,
            version.epoch, version.number, fragment.config_digest,
            fragment.num_transitions, fragment.produced_through, laid_out.described,
        )
    )  # fmt: skip
    padding = bytes(-len(head) % ALIGNMENT)
    raw = join((head, padding, *laid_out.buffers()))
    body = lz4.block.compress(raw, store_size=False)
    lengths = _LENGTHS.pack(len(raw), len(head))
    return join((_START.pack(_MAGIC, zlib.crc32(body, zlib.crc32(lengths))), lengths, body))


def unpack_chunk(value: bytes, max_bytes: int) -> Fragment:
    """The fragment again, its arrays read-only views of at most ``max_bytes``.

    ChecksumError for bytes that are not what was stored, CodecError for what no fragment can be.
    """
    if len(value) < _HEADER_BYTES or not value.startswith(_MAGIC):
        raise ChecksumError(f"{len(value)} bytes that are no chunk")
    _, crc = _START.unpack_from(value)
    if zlib.crc32(memoryview(value)[_START.size :]) != crc:
        raise ChecksumError("a chunk's CRC-32 differs")
    raw_bytes, head_bytes = _LENGTHS.unpack_from(value, _START.size)
    if raw_bytes > max_bytes + _SLACK_BYTES:
        raise CodecError(f"a chunk of {raw_bytes} bytes; at most {max_bytes + _SLACK_BYTES} are allowed")
    try:
        raw = lz4.block.decompress(memoryview(value)[_HEADER_BYTES:], uncompressed_size=raw_bytes)
        head = msgpack.unpackb(raw[:head_bytes])
        sampler_id, incarnation, sequence, epoch, number, digest, transitions, produced, described = head
    except (lz4.block.LZ4BlockError, ValueError, TypeError, msgpack.UnpackException) as error:
        raise CodecError(f"a chunk that can't be read: {error}") from error
    start = head_bytes + -head_bytes % ALIGNMENT
    return Fragment(
        FragmentId(SamplerIdentity(sampler_id, incarnation), sequence),
        PolicyVersion(epoch, number),
        digest,
        read_description(described).view(memoryview(raw)[start:], trusted=True),
        transitions,
        produced,
    )


def unpacked_bytes(value: bytes) -> int:
    """Memory that a chunk takes once it is unpacked."""
    raw_bytes: int = _LENGTHS.unpack_from(value, _START.size)[0]
    return raw_bytes


def meta_of(fragment: Fragment, nbytes: int, n_step: int) -> ChunkMeta:
    """The index entry of a fragment whose value has ``nbytes``."""
    pending = pending_of(fragment, n_step).reshape(-1)
    drawable = valid_of(fragment).reshape(-1) & ~pending
    return ChunkMeta(
        sampler=fragment.id.sampler,
        sequence=fragment.id.sequence,
        epoch=fragment.policy_version.epoch,
        version=fragment.policy_version.number,
        num_transitions=fragment.num_transitions,
        nbytes=nbytes,
        drawable=b"" if drawable.all() else np.packbits(drawable).tobytes(),
        pending=np.packbits(pending).tobytes() if pending.any() else b"",
    )


def pack_meta(meta: ChunkMeta) -> bytes:
    """An index entry, with a checksum."""
    packed: bytes = msgpack.packb(
        (
            meta.sampler.sampler_id, meta.sampler.incarnation, meta.sequence, meta.epoch, meta.version,
            meta.num_transitions, meta.nbytes, meta.drawable, meta.pending,
        )
    )  # fmt: skip
    return zlib.crc32(packed).to_bytes(4, "little") + packed


def unpack_meta(value: bytes) -> ChunkMeta:
    """The inverse of :func:`pack_meta`. ChecksumError for anything else."""
    if len(value) < 5 or zlib.crc32(value[4:]) != int.from_bytes(value[:4], "little"):
        raise ChecksumError("an index entry's CRC-32 differs")
    sampler_id, incarnation, *rest = msgpack.unpackb(value[4:])
    return ChunkMeta(SamplerIdentity(sampler_id, incarnation), *rest)


def _unpack(packed: bytes, count: int) -> Mask:
    return np.unpackbits(np.frombuffer(packed, np.uint8), count=count).astype(np.bool_)
