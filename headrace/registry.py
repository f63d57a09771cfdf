"""``RUN/services/<service>-<index>.json``: where each process of a local run listens.

A service writes its record once it listens; the launcher and ``headrace top`` read them.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "services"


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """One listening process. ``address`` is ``host:port`` of its gRPC server, empty if it has none."""

    service: str
    index: int
    pid: int
    address: str
    metrics_port: int

    @property
    def name(self) -> str:
        """``<service>-<index>``."""
        return f"{self.service}-{self.index}"


def announce(
    run_dir: Path | None, service: str, index: int, *, address: str = "", metrics_port: int = 0
) -> None:
    """Write this process's record atomically. Without a run folder: nothing to do."""
    if run_dir is None:
        return
    record = ServiceRecord(service, index, os.getpid(), address, metrics_port)
    folder = run_dir / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{record.name}.{record.pid}.partial"
    partial.write_text(json.dumps(asdict(record)), "utf-8")
    partial.replace(folder / f"{record.name}.json")


def read_records(run_dir: Path) -> list[ServiceRecord]:
    """All records of a run, sorted by name. Unreadable ones are left out."""
    records = []
    for path in sorted((run_dir / FOLDER).glob("*.json")):
        try:
            raw = json.loads(path.read_text("utf-8"))
            records.append(
                ServiceRecord(
                    service=str(raw["service"]),
                    index=int(raw["index"]),
                    pid=int(raw["pid"]),
                    address=str(raw["address"]),
                    metrics_port=int(raw["metrics_port"]),
                )
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return records
