"""Writes what a collector gathers: ``metrics.jsonl`` and TensorBoard files, at a pace of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from headrace import logs
from headrace.local.collector import Collector
from headrace.local.row import Row
from headrace.local.tensorboard import TensorBoard

_STATE_POLL_S = 0.25


class CollectorThread:
    """Runs a collector at its own pace, so that a slow scrape never delays a restart."""

    def __init__(
        self, collector: Collector, *, path: Path, tensorboard: Path | None, interval_s: float
    ) -> None:
        self._collector = collector
        self._path = path
        self._tensorboard_folder = tensorboard
        self._interval_s = interval_s
        self._logger = logs.get_logger("headrace.collector")
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards _newest and _problems
        self._newest: Row | None = None
        self._problems: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="collector", daemon=True)
        self._tensorboard: TensorBoard | None = None

    @property
    def newest(self) -> Row | None:
        """The last row made."""
        with self._lock:
            return self._newest

    @property
    def problems(self) -> dict[str, str]:
        """What could not be written, and why: a path within the run's folder, and what the system said."""
        with self._lock:
            return dict(self._problems)

    def start(self) -> None:
        """Collect until :meth:`stop`."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread; from then on :meth:`record` makes rows."""
        self._stop.set()
        self._thread.join(timeout_s)

    def close(self) -> None:
        """Close the files."""
        if self._tensorboard is not None:
            with self._noting("tb"):
                self._tensorboard.close()

    def _run(self) -> None:
        if self._tensorboard_folder is not None:
            with self._noting("tb"):
                self._tensorboard = TensorBoard(self._tensorboard_folder)
        clock = self._collector.clock
        due = clock() + self._interval_s
        while not self._stop.wait(min(_STATE_POLL_S, self._interval_s)):
            if clock() >= due:
                due = clock() + self._interval_s
                self.record()
            else:
                self._collector.poll_view()

    def record(self) -> None:
        """Make one row. Only where the thread doesn't run."""
        row = self._collector.collect()
        with self._lock:
            self._newest = row
        with self._noting(self._path.name), self._path.open("a", encoding="utf-8") as file:
            file.write(row.to_json() + "\n")
        if self._tensorboard is not None:
            with self._noting("tb"):
                self._tensorboard.write(row.scalars(), row.env_steps)

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Files that can't be written are noted; the run goes on without them."""
        try:
            yield
        except OSError as error:
            with self._lock:
                is_new = what not in self._problems
                self._problems[what] = str(error)
            if is_new:
                self._logger.warning("metrics can't be written", what=what, error=str(error))
