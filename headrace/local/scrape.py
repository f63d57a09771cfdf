"""Reads Prometheus endpoints of the run's services. Small and quick: it runs beside the training."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Samples:
    """One scrape: values by metric name and labels, as in the text format (``..._total``, ``..._bucket``)."""

    values: Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]

    def total(self, name: str) -> float:
        """Sum over all label values; 0 if the metric isn't there."""
        return sum(self.values.get(name, {}).values())

    def single(self, name: str) -> float | None:
        """Value of a metric without labels; None if it isn't there."""
        return self.values.get(name, {}).get(())

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Sums by one label's value."""
        sums: dict[str, float] = {}
        for labels, value in self.values.get(name, {}).items():
            key = dict(labels).get(label, "")
            sums[key] = sums.get(key, 0.0) + value
        return sums


def parse(text: str) -> Samples:
    """Parse the Prometheus text format; lines that aren't samples are skipped."""
    values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for name, labels, value in _samples(text):
        values.setdefault(name, {})[labels] = value
    return Samples(values)


def fetch(host: str, port: int, *, timeout_s: float = 1.0) -> Samples | None:
    """Scrape ``http://host:port/metrics``; None if nobody answers in time."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        if response.status != 200:
            return None
        return parse(response.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _samples(text: str) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:
    for line in text.splitlines():
        if not line or line[0] == "#" or (match := _LINE.match(line)) is None:
            continue
        name, labels, value = match.groups()
        if name.endswith("_created"):
            continue
        try:
            yield name, tuple(_LABEL.findall(labels)) if labels else (), float(value)
        except ValueError:
            continue
