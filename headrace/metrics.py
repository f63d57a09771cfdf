"""What every service's metrics have in common, and the endpoint that serves them.

A service declares its own in ``services/<service>/metrics.py`` as a subclass of
:class:`ServiceMetrics` that creates all its collectors in ``__init__`` (names
``headrace_<service>_...``, base units); ``docs/metrics.md`` is generated from these classes.
Labels are bounded: never a fragment id, never an incarnation.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from headrace import __version__
from headrace.errors import ConfigurationError
from headrace.metrics_server import MetricsServer


class ServiceMetrics:
    """Collectors that every service has. ``registry`` is the service's own, never the global one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        ProcessCollector(registry=registry)
        self.transitions = Counter(
            "headrace_transitions",
            "Transitions by what became of them (produced, discarded, sealed, trained, dropped) and reason.",
            ["state", "reason"],
            registry=registry,
        )
        self.build_info = Gauge(
            "headrace_build_info",
            "1, with the version of Headrace and the digest of the configuration as labels.",
            ["version", "config_digest"],
            registry=registry,
        )

    def identify(self, config_digest: str) -> None:
        """Fill ``headrace_build_info``."""
        self.build_info.labels(version=__version__, config_digest=config_digest).set(1)


def start_metrics_server(host: str, port: int, registry: CollectorRegistry) -> int:
    """Serve ``http://host:port/metrics`` until the process ends. Returns the bound port (0 picks one).

    Raises ConfigurationError if the port is taken.
    """
    try:
        return MetricsServer(host, port, registry).port
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigurationError([f"network.metrics_port: port {port} on {host} is taken"]) from error
        raise ConfigurationError(
            [f"network.metrics_port: cannot listen on {host}:{port}: {error.strerror or error}"]
        ) from error


def begin_at_zero(counter: Counter, label: str, values: Iterable[str], **labels: str) -> None:
    """Create the series of these label values. One that appears with its first count has no rate yet."""
    for value in values:
        counter.labels(**labels, **{label: value})


class CounterMirror:
    """Keeps a counter equal to cumulative values that somebody else counts, one label value a key.

    The counter's last label takes the key; other labels are fixed at construction.
    """

    def __init__(self, counter: Counter, **labels: str) -> None:
        self._counter = counter
        self._labels = labels
        self._seen: dict[str, float] = {}

    def follow(self, totals: Mapping[str, float]) -> None:
        """Add what ``totals`` grew by since the last call."""
        for reason, total in totals.items():
            grown = total - self._seen.get(reason, 0)
            if grown > 0:
                self._counter.labels(**self._labels, reason=reason).inc(grown)
                self._seen[reason] = total
