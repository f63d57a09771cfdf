"""TensorBoard files of a run, written with tensorboard's own writer; TensorFlow isn't needed."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorBoard:
    """Writes scalars; the step is the run's environment steps."""

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder))

    def write(self, scalars: Mapping[str, float | None], step: int) -> None:
        """One point for each scalar that is there and finite."""
        values = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in scalars.items()
            if value is not None and math.isfinite(value)
        ]
        if values:
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
