"""Fragments as bytes and back: fast, bounded, and byte for byte what protobuf would write."""

from headrace.codec.decode import Damaged, FragmentAssembler
from headrace.codec.encode import encode_fragment, encode_parts, join_request
from headrace.codec.parts import EncodedPart, part_cost

__all__ = [
    "Damaged",
    "EncodedPart",
    "FragmentAssembler",
    "encode_fragment",
    "encode_parts",
    "join_request",
    "part_cost",
]
