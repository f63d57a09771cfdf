"""Structured logs: one JSON object a line on stderr, the same keys in every process.

The launcher sends a service's stderr into ``RUN/logs/<service>-<n>.log``; on Kubernetes it goes
to the container's log. Times are wall-clock and for people only; nothing is decided by them.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import structlog

Logger = structlog.stdlib.BoundLogger


def configure(
    service: str,
    index: int,
    run_dir: Path | None,
    config_digest: str,
    *,
    pod: str = "",
    level: str = "INFO",
    stream: TextIO | None = None,
) -> None:
    """Set up logging of this process. Every line carries service, index, run and digest.

    ``pod``: name that people know the process by, if it has one. Lines go to ``stream``, by default stderr.

    Lines of the standard ``logging`` module (grpc, gymnasium) and uncaught exceptions get the same form.
    """
    structlog.contextvars.clear_contextvars()
    own = {"service": service, "index": index, "config_digest": config_digest}
    if run_dir is not None:
        own["run"] = run_dir.name
    if pod:
        own["pod"] = pod
    # Loggers that are in use already keep what they were made with, so that it is one dictionary for all.
    _own.clear()
    _own.update(own)
    shared: list[Any] = [
        _add_own,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught


def get_logger(name: str = "headrace") -> Logger:
    """A logger; keyword arguments of its calls become keys of the line."""
    logger: Logger = structlog.stdlib.get_logger(name)
    return logger


@contextlib.contextmanager
def log_file(path: Path) -> Iterator[TextIO]:
    """A file for :func:`configure`, appended to. OSError if it can't be opened; a full disk later is none."""
    file = path.open("a", encoding="utf-8")
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # what is still in the buffer didn't fit on the disk before
            file.close()


class _Handler(logging.StreamHandler[TextIO]):
    """Keeps quiet where the log can't be written: a traceback on the terminal wouldn't help anybody."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


_own: dict[str, Any] = {}
"""What every line of this process says."""


def _add_own(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """A processor that puts who is speaking into every line, from whatever thread it comes."""
    return {**_own, **event}


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    """Last word of a process that dies of an exception."""
    if issubclass(kind, KeyboardInterrupt):
        return
    get_logger().critical(f"{kind.__name__}: {error}", exc_info=(kind, error, traceback))
