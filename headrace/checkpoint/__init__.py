"""Checkpoints: published versions on disk, whole or not at all, readable without any service."""

from headrace.checkpoint.blob import Blob, decode_arrays, encode_arrays, find_non_finite
from headrace.checkpoint.directory import CheckpointDirectory
from headrace.checkpoint.journal import Journal, read_journal
from headrace.checkpoint.newest import Newest, find_newest
from headrace.checkpoint.record import VersionRecord, from_manifest, to_manifest

__all__ = [
    "Blob",
    "CheckpointDirectory",
    "Journal",
    "Newest",
    "VersionRecord",
    "decode_arrays",
    "encode_arrays",
    "find_newest",
    "find_non_finite",
    "from_manifest",
    "read_journal",
    "to_manifest",
]
