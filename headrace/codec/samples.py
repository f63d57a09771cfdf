"""Samples of replay as wire bytes and back, and priorities on their way home."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from headrace.codec.assembler import PartAssembler, ReadSlab, Whole
from headrace.codec.parts import WriteSlab, encode_columns, join_part
from headrace.codec.slab import SlabWriter
from headrace.codec.wire import LENGTH, read_field
from headrace.errors import CodecError
from headrace.types import Array, Sample
from headrace.v1 import replay_pb2, trajectory_pb2

KEY, PROBABILITY, VERSION = "key", "probability", "version"
MAX_ITEMS = 65536
"""Items of one draw, at most."""

EMPTY = "empty"
"""Reason of an answer without items: there is nothing to draw."""

_OPENED, _SAMPLE = 1, 2  # fields of SampleResponse
_OWN = ((KEY, np.dtype(np.int64)), (PROBABILITY, np.dtype(np.float64)), (VERSION, np.dtype(np.int64)))
_ROUNDING = 1e-9  # a probability is a quotient of sums
_KEY_BYTES, _PRIORITY_BYTES = 8, 4


@dataclass(frozen=True, slots=True)
class Opened:
    """The shard has accepted the stream. ``slab``: the memory it offers."""

    slab: trajectory_pb2.Slab | None = None


@dataclass(frozen=True, slots=True)
class SampleReply:
    """An answer of a shard. ``sample`` is None where there was nothing to draw, for ``reason``, or where what
    came can't be used: then ``problem`` says why.
    """

    request_id: int
    sample: Sample | None
    count: int
    mass: float
    reason: str = ""
    problem: str = ""


def encode_sample(
    request_id: int,
    sample: Sample | None,
    *,
    count: int,
    mass: float,
    message_bytes: int,
    checksum: bool = False,
    write_slab: WriteSlab | None = None,
) -> Iterator[bytes]:
    """The SampleResponse messages of one answer, each at most ``message_bytes`` long and made when taken.

    With ``write_slab`` the arrays go into shared memory, if there is room.
    """
    columns: dict[str, Array] = {}
    if sample is not None:
        columns = {KEY: sample.keys, PROBABILITY: sample.probabilities, VERSION: sample.versions}
        columns.update(sample.columns)
    header = replay_pb2.SampleHeader(
        request_id=request_id,
        num_items=0 if sample is None else sample.size,
        reason=EMPTY if sample is None else "",
        count=count,
        mass=mass,
    )
    codec = "protobuf" if write_slab is None or sample is None else "shared_memory"
    parts = encode_columns(
        header.SerializeToString(), columns, codec, message_bytes, checksum=checksum, write_slab=write_slab
    )
    return map(join_part, parts)


def encode_opened(slab: SlabWriter | None) -> bytes:
    """The first SampleResponse on a stream."""
    opened = replay_pb2.SamplingOpened(slab=None if slab is None else slab.describe())
    return replay_pb2.SampleResponse(opened=opened).SerializeToString()


class SampleAssembler:
    """Reads the answers on one stream in order. Not thread-safe. ``max_bytes`` bounds one answer's arrays."""

    def __init__(self, max_bytes: int) -> None:
        self._parts = PartAssembler(max_bytes, replay_pb2.SampleHeader.FromString, "sample")

    def share(self, read_slab: ReadSlab) -> None:
        """Take arrays out of shared memory, too, from now on."""
        self._parts.read_slab = read_slab

    def feed(self, data: bytes) -> Opened | SampleReply | None:
        """What ``data``, one SampleResponse, completes. CodecError if it breaks the contract."""
        number, wire_type, start, end, after = read_field(data, 0, len(data))
        if after != len(data) or wire_type != LENGTH:
            raise CodecError("a message holds exactly one kind, this one more")
        if number == _OPENED:
            return _opened(data)
        if number != _SAMPLE:
            raise CodecError("a message of a kind that this version does not know")
        whole = self._parts.take(data, start, end)
        return None if whole is None else _reply(whole)


def _opened(data: bytes) -> Opened:
    try:
        message = replay_pb2.SampleResponse.FromString(data).opened
    except DecodeError as error:
        raise CodecError("not a SampleResponse") from error
    return Opened(message.slab if message.HasField("slab") else None)


def _reply(whole: Whole[replay_pb2.SampleHeader]) -> SampleReply:
    header = whole.header
    if not 0.0 <= header.mass < np.inf:
        raise CodecError(f"a shard's mass of {header.mass!r}")
    if header.num_items > MAX_ITEMS:
        raise CodecError(f"an answer of {header.num_items} items; at most {MAX_ITEMS} are taken")
    if whole.columns is None:
        problem = "the payload's CRC-32 differs"
        return SampleReply(header.request_id, None, header.count, header.mass, problem=problem)
    if not header.num_items:
        if not header.reason or whole.columns:
            raise CodecError("an answer without items says why, and holds no columns")
        return SampleReply(header.request_id, None, header.count, header.mass, reason=header.reason)
    sample = _sample(whole.columns, header.num_items)
    return SampleReply(header.request_id, sample, header.count, header.mass)


def _sample(columns: dict[str, Array], num_items: int) -> Sample:
    for name, dtype in _OWN:
        if name not in columns:
            raise CodecError(f"an answer without the column {name!r}")
        if columns[name].dtype != dtype or columns[name].ndim != 1:
            raise CodecError(f"column {name!r} is {columns[name].dtype}{list(columns[name].shape)}")
    for name, array in columns.items():
        if array.shape[:1] != (num_items,):
            raise CodecError(f"column {name!r} of an answer of {num_items} items has shape {array.shape}")
    keys, probabilities, versions = (columns.pop(name) for name, _ in _OWN)
    if not bool(((probabilities > 0.0) & (probabilities <= 1.0 + _ROUNDING)).all()):
        raise CodecError("an item with a probability outside (0, 1]")
    if int(keys.min()) < 0 or int(versions.min()) < 0:
        raise CodecError("an item with a negative key or version")
    return Sample(keys, probabilities, versions, columns)


def pack_priorities(keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.floating]) -> tuple[bytes, bytes]:
    """Keys and priorities ``[N]`` as in UpdatePrioritiesRequest."""
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        return keys.astype("<i8").tobytes(), priorities.astype("<f4").tobytes()


def unpack_priorities(
    keys: bytes, priorities: bytes
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Inverse of :func:`pack_priorities`; CodecError unless there is one priority a key."""
    count = len(keys) // _KEY_BYTES
    if len(keys) != _KEY_BYTES * count or len(priorities) != _PRIORITY_BYTES * count:
        raise CodecError(
            f"{len(keys)} bytes of keys (int64) for {len(priorities)} bytes of priorities (float32)"
        )
    return np.frombuffer(keys, "<i8"), np.frombuffer(priorities, "<f4")
