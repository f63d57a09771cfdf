"""The small messages of a fragment stream, between the wire and plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from headrace.errors import CodecError
from headrace.flow.messages import Grant, Opened, Permit, Refused, Release, Settled
from headrace.types import PolicyVersion
from headrace.v1 import common_pb2, trajectory_pb2


@dataclass(frozen=True, slots=True)
class Welcome:
    """A stream is open, as the sender hears of it. ``shared_memory``: the receiver has its slab mapped."""

    settled_through: int
    version: PolicyVersion
    paced: bool
    shared_memory: bool = False

    @classmethod
    def of(cls, opened: Opened, *, shared_memory: bool) -> Welcome:
        """What to say of ``opened``."""
        return cls(opened.settled_through, opened.version, opened.paced, shared_memory)


Response = Welcome | Grant | Settled | Refused
"""What travels from receiver to sender."""


def write_response(value: Response) -> bytes:
    """A StreamFragmentsResponse as wire bytes."""
    response = trajectory_pb2.StreamFragmentsResponse()
    match value:
        case Grant():
            response.grant.total_bytes = value.total_bytes
            response.grant.throttled_by = value.throttled_by
            response.grant.quota_steps = value.quota_steps
            for permit in value.permits:
                response.grant.permits.add(index=permit.index, min_version=permit.min_version)
        case Settled():
            response.settled.through = value.through
        case Refused():
            response.refused.sequence = value.sequence
            response.refused.reason = value.reason
            response.refused.detail = value.detail
        case Welcome():
            version = common_pb2.PolicyVersion(epoch=value.version.epoch, number=value.version.number)
            response.welcome.settled_through = value.settled_through
            response.welcome.policy_version.CopyFrom(version)
            response.welcome.paced = value.paced
            response.welcome.shared_memory = value.shared_memory
    return response.SerializeToString()


def read_response(data: bytes) -> Response:
    """The inverse of :func:`write_response`."""
    try:
        response = trajectory_pb2.StreamFragmentsResponse.FromString(data)
    except DecodeError as error:
        raise CodecError("not a StreamFragmentsResponse") from error
    kind = response.WhichOneof("kind")
    if kind == "grant":
        grant = response.grant
        permits = tuple(Permit(permit.index, permit.min_version) for permit in grant.permits)
        return Grant(grant.total_bytes, permits, grant.throttled_by, grant.quota_steps)
    if kind == "settled":
        return Settled(response.settled.through)
    if kind == "refused":
        return Refused(response.refused.sequence, response.refused.reason, response.refused.detail)
    if kind == "welcome":
        welcome = response.welcome
        version = PolicyVersion(welcome.policy_version.epoch, welcome.policy_version.number)
        return Welcome(welcome.settled_through, version, welcome.paced, welcome.shared_memory)
    raise CodecError("a response of a kind that this version does not know")


def write_report(produced: int, discarded: Mapping[str, int], backlog_bytes: int) -> bytes:
    """A StreamFragmentsRequest with a SamplerReport."""
    report = trajectory_pb2.SamplerReport(produced=produced, discarded=discarded, backlog_bytes=backlog_bytes)
    return trajectory_pb2.StreamFragmentsRequest(report=report).SerializeToString()


def write_goodbye(reason: str, last_sequence: int) -> bytes:
    """A StreamFragmentsRequest with a Goodbye. ``last_sequence`` -1: it never sent a fragment."""
    goodbye = trajectory_pb2.Goodbye(reason=reason, last_sequence=last_sequence)
    return trajectory_pb2.StreamFragmentsRequest(goodbye=goodbye).SerializeToString()


def write_release(release: Release) -> bytes:
    """A StreamFragmentsRequest with a Release."""
    priorities = b"" if release.priorities is None else release.priorities.astype("<f4").tobytes()
    message = trajectory_pb2.Release(through=release.through, priorities=priorities)
    return trajectory_pb2.StreamFragmentsRequest(release=message).SerializeToString()


def read_release(message: trajectory_pb2.Release) -> Release:
    """The inverse of :func:`write_release`; CodecError unless priorities are whole numbers of floats."""
    if len(message.priorities) % 4:
        raise CodecError(f"priorities of {len(message.priorities)} bytes are no float32 array")
    values = np.frombuffer(message.priorities, "<f4") if message.priorities else None
    return Release(message.through, values)
