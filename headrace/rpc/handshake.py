"""Do two ends belong together? Compared on every stream and every rpc that changes state."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.digest import differing_keys
from headrace.errors import HandshakeError
from headrace.v1 import common_pb2

PROTOCOL_VERSION = 1
_MAX_KEYS = 10


@dataclass(frozen=True, slots=True)
class Handshake:
    """What one end says of itself. ``space_specification`` is empty where it has no environment."""

    run_id: str
    config_digest: str
    space_specification: str = ""
    peer: str = ""
    config_json: str = ""
    protocol_version: int = PROTOCOL_VERSION

    def to_proto(self) -> common_pb2.Handshake:
        """The message of the wire contract."""
        return common_pb2.Handshake(
            run_id=self.run_id,
            config_digest=self.config_digest,
            protocol_version=self.protocol_version,
            space_specification=self.space_specification,
            peer=self.peer,
            config_json=self.config_json,
        )

    @classmethod
    def from_proto(cls, message: common_pb2.Handshake) -> Handshake:
        """Read the message of the wire contract."""
        return cls(
            run_id=message.run_id,
            config_digest=message.config_digest,
            space_specification=message.space_specification,
            peer=message.peer,
            config_json=message.config_json,
            protocol_version=message.protocol_version,
        )


def check(own: Handshake, theirs: Handshake) -> None:
    """Raise HandshakeError unless both ends belong to one run, one configuration, one protocol.

    The message names everything that differs, for configurations key by key.
    """
    problems = []
    if own.protocol_version != theirs.protocol_version:
        problems.append(
            f"wire protocol {theirs.protocol_version} against {own.protocol_version} here: "
            "install the same version of headrace at both ends"
        )
    if own.run_id != theirs.run_id:
        problems.append(f"run id {theirs.run_id!r} against {own.run_id!r} here: these are two runs")
    if own.config_digest != theirs.config_digest:
        problems.append(
            f"configuration digest {theirs.config_digest} against {own.config_digest} here"
            + _what_differs(theirs.config_json, own.config_json)
        )
    elif _both_differ(own.space_specification, theirs.space_specification):
        problems.append(
            f"observation or action space: {_clip(theirs.space_specification)} against "
            f"{_clip(own.space_specification)} here: the two ends run different versions of the environment"
        )
    if problems:
        raise HandshakeError(f"refused {theirs.peer or 'the peer'}: " + "; ".join(problems))


def _both_differ(own: str, theirs: str) -> bool:
    return bool(own) and bool(theirs) and own != theirs


def _what_differs(theirs: str, own: str) -> str:
    if not theirs or not own:
        return " (one end did not send its configuration, so the differing keys are unknown)"
    try:
        keys = differing_keys(theirs, own)
    except (ValueError, AttributeError, RecursionError):  # not JSON, not a mapping, or hostile nesting
        return " (the configuration it sent can't be read)"
    if not keys:
        return ""
    more = f" and {len(keys) - _MAX_KEYS} more" if len(keys) > _MAX_KEYS else ""
    return ": " + ", ".join(keys[:_MAX_KEYS]) + more + (" differs" if len(keys) == 1 else " differ")


def _clip(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
