"""Wire bytes to fragments: protobuf parses only what is small, the rest is viewed or copied once."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from headrace.codec.assembler import PartAssembler, ReadSlab, Whole
from headrace.codec.wire import LENGTH, fields, read_field
from headrace.errors import CodecError
from headrace.types import Fragment, FragmentId, PolicyVersion, SamplerIdentity
from headrace.v1 import trajectory_pb2


@dataclass(frozen=True, slots=True)
class Damaged:
    """A fragment whose header arrived but whose payload was altered on the way."""

    id: FragmentId
    num_transitions: int
    nbytes: int
    detail: str


Control = (
    trajectory_pb2.OpenStream | trajectory_pb2.SamplerReport | trajectory_pb2.Goodbye | trajectory_pb2.Release
)
Received = Fragment | Damaged | Control
"""What a message can hold."""


class FragmentAssembler:
    """Reads the messages of one stream in order. Not thread-safe: one reader a stream.

    ``max_bytes`` bounds the arrays of one fragment; what becomes of them, see
    :class:`headrace.codec.assembler.PartAssembler`. ``read_slab`` may be set once a slab is agreed on.
    """

    def __init__(self, max_bytes: int, *, read_slab: ReadSlab | None = None) -> None:
        self._parts = PartAssembler(max_bytes, trajectory_pb2.FragmentHeader.FromString, "fragment")
        self._parts.read_slab = read_slab

    @property
    def read_slab(self) -> ReadSlab | None:
        """What reads payloads in shared memory; None: none are agreed to."""
        return self._parts.read_slab

    @read_slab.setter
    def read_slab(self, read_slab: ReadSlab | None) -> None:
        self._parts.read_slab = read_slab

    def feed(self, data: bytes) -> list[Received]:
        """What ``data``, one StreamFragmentsRequest, completes. CodecError if it breaks the contract."""
        number, wire_type, start, end, after = read_field(data, 0, len(data))
        if after != len(data):
            raise CodecError("a message holds exactly one kind, this one more")
        if wire_type != LENGTH:
            raise CodecError(f"field {number} of a message is not a submessage")
        if number not in (2, 3):
            return [self._control(data)]
        if number == 2:
            whole = self._parts.take(data, start, end)
            return [] if whole is None else [_fragment(whole)]
        received: list[Received] = []
        for inner, inner_type, part_start, part_end in fields(data, start, end):
            if (inner, inner_type) == (1, LENGTH):
                whole = self._parts.take(data, part_start, part_end)
                if whole is not None:
                    received.append(_fragment(whole))
        return received

    def _control(self, data: bytes) -> Control:
        if self._parts.due:
            raise CodecError(f"part {self._parts.due} of a fragment is missing")
        try:
            request = trajectory_pb2.StreamFragmentsRequest.FromString(data)
        except DecodeError as error:
            raise CodecError("not a StreamFragmentsRequest") from error
        kind = request.WhichOneof("kind")
        if kind not in ("open", "report", "goodbye", "release"):
            raise CodecError("a message of a kind that this version does not know")
        control: Control = getattr(request, kind)
        return control


def _fragment(whole: Whole[trajectory_pb2.FragmentHeader]) -> Fragment | Damaged:
    header = whole.header
    identity = SamplerIdentity(header.sampler.sampler_id, header.sampler.incarnation)
    fragment_id = FragmentId(identity, header.sequence)
    if whole.columns is None:
        return Damaged(fragment_id, header.num_transitions, whole.nbytes, "the payload's CRC-32 differs")
    return Fragment(
        id=fragment_id,
        policy_version=PolicyVersion(header.policy_version.epoch, header.policy_version.number),
        config_digest=header.config_digest,
        columns=whole.columns,
        num_transitions=header.num_transitions,
        produced_through=header.produced_through,
        permit=header.permit,
        steps_per_s=header.steps_per_second,
    )
