"""Bad data, kept with its provenance so that a person can find out where it came from.

Each refused sample is ``RUN/quarantine/<service>-<n>.json`` (reason, detail, provenance) and, if
it has arrays, ``<service>-<n>.npz`` beside it. Nothing in there is ever trained on, and nothing
in there can run code: arrays that would need pickle are kept as text.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace import logs
from headrace.events import EventLog, plain
from headrace.types import Array

FOLDER = "quarantine"
MAX_ARRAY_BYTES = 64 * 2**20
"""Bytes of arrays that one service keeps; past this only the JSON part of a sample is written."""


class QuarantineStore:
    """Keeps the first ``maximum`` refused samples of one service on disk; counts all of them.

    ``service`` names the process, e.g. ``sampler-0``; what earlier lives of it left counts
    towards the maximum. Thread-safe: ``_lock`` guards the counters and the file numbers.
    A full disk is logged and costs the sample, never the run.
    """

    def __init__(self, run_dir: Path | None, service: str, maximum: int) -> None:
        self._folder = None if run_dir is None else run_dir / FOLDER
        self._service = service
        self._maximum = maximum
        self._events = EventLog(run_dir, service)
        self._logger = logs.get_logger("headrace.quarantine")
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._kept = 0
        self._array_bytes = 0
        if self._folder is not None:
            self._kept = sum(1 for _ in self._folder.glob(f"{service}-*.json"))
            self._array_bytes = sum(path.stat().st_size for path in self._folder.glob(f"{service}-*.npz"))

    @property
    def counts(self) -> dict[str, int]:
        """Refused samples by reason since this process started, kept or not."""
        with self._lock:
            return dict(self._counts)

    def store(
        self, reason: str, detail: str, provenance: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> None:
        """Count one refused sample and keep it if there is room.

        ``reason`` is one of the ledger's words, ``detail`` a sentence, ``provenance`` whatever is
        known of where it came from (sampler, incarnation, environment, lane, seed, episode, step...).
        """
        with self._lock:
            self._counts[reason] = self._counts.get(reason, 0) + 1
            if self._folder is None or self._kept >= self._maximum:
                return
            stem = f"{self._service}-{self._kept}"
            self._kept += 1
            payload, left_out = _pack(arrays, MAX_ARRAY_BYTES - self._array_bytes)
            self._array_bytes += len(payload)
        sample = {
            "time": time.time(),
            "service": self._service,
            "reason": reason,
            "detail": detail,
            "provenance": dict(provenance),
            "arrays": {name: {"dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()},
            "left_out": left_out,
        }
        try:
            self._write(self._folder, stem, sample, payload)
        except OSError as error:
            self._logger.warning("a refused sample could not be kept", reason=reason, error=str(error))
        self._events.emit(
            "quarantine",
            reason=reason,
            detail=detail,
            file=f"{FOLDER}/{stem}.json",
            provenance=dict(provenance),
        )

    @staticmethod
    def _write(folder: Path, stem: str, sample: dict[str, Any], payload: bytes) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        files = [(".npz", payload)] if payload else []
        files.append((".json", json.dumps(sample, indent=1, default=plain).encode()))
        for suffix, content in files:
            partial = folder / f".{stem}{suffix}.partial"
            partial.write_bytes(content)
            partial.replace(folder / f"{stem}{suffix}")


def _pack(arrays: Mapping[str, Array], room_bytes: int) -> tuple[bytes, dict[str, str]]:
    """An npz of what fits and needs no pickle, and a text for each array that was left out."""
    left_out: dict[str, str] = {}
    packed: dict[str, Array] = {}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            left_out[name] = repr(array.tolist())[:1000]
        elif array.nbytes > room_bytes:
            left_out[name] = f"too large: {array.nbytes} bytes"
        else:
            packed[name.replace("/", ".")] = array
            room_bytes -= array.nbytes
    if not packed:
        return b"", left_out
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **packed)
    return buffer.getvalue(), left_out
