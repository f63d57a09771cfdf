"""TensorBoard files of a run, in tensorboard's own format; TensorFlow isn't needed.

Written by the caller's thread: tensorboard's own writer has a thread that dies of a full disk with a
traceback on the terminal, and nobody else hears of it.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

_FORMAT = "brain.Event:2"


class TensorBoard:
    """Writes scalars; the step is the run's environment steps. Everything may raise OSError (disk full)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((folder / name).open("ab"))
        self._add(Event(wall_time=time.time(), file_version=_FORMAT))

    def write(self, scalars: Mapping[str, float | None], step: int) -> None:
        """One point for each scalar that is there and finite."""
        values = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in scalars.items()
            if value is not None and math.isfinite(value)
        ]
        if values:
            self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()

    def _add(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())
        self._writer.flush()
