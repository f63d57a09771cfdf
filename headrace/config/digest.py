"""Identity of a configuration: canonical JSON, its digest, and which keys differ between two."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from headrace.config.sections import Config

DIGEST_LENGTH = 16
"""Hex digits of a digest: 64 bits tell configurations apart, they are no signature."""


def config_document(config: Config) -> dict[str, Any]:
    """Return the resolved document as plain values, with the keys as written in YAML."""
    return config.model_dump(mode="python", by_alias=True)


def config_json(config: Config) -> str:
    """Canonical JSON of the resolved document: sorted keys, no spaces. Equal text = equal configuration."""
    return json.dumps(config_document(config), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def config_digest(config: Config) -> str:
    """First 16 hex digits of the SHA-256 of :func:`config_json`."""
    return hashlib.sha256(config_json(config).encode()).hexdigest()[:DIGEST_LENGTH]


def flatten(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of a document by dotted path; an empty mapping and a list are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in document.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            leaves.update(flatten(value, f"{path}."))
        else:
            leaves[path] = value
    return leaves


def differing_keys(json_a: str, json_b: str) -> list[str]:
    """Dotted paths, sorted, at which two documents in canonical JSON differ or only one has a value."""
    a, b = flatten(json.loads(json_a)), flatten(json.loads(json_b))
    return sorted(path for path in a.keys() | b.keys() if a.get(path, _ABSENT) != b.get(path, _ABSENT))


_ABSENT = object()
