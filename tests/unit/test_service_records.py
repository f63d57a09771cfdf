"""Where services say that they listen, and the metrics endpoint they announce."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headrace.errors import ConfigurationError
from headrace.metrics import ServiceMetrics, start_metrics_server
from headrace.registry import FOLDER, ServiceRecord, announce, read_records


def test_a_record_is_read_back_and_a_new_life_replaces_it(tmp_path: Path) -> None:
    announce(tmp_path, "learner", 0, address="127.0.0.1:1", metrics_port=2)
    announce(tmp_path, "learner", 0, address="127.0.0.1:1", metrics_port=3)
    announce(tmp_path, "sampler", 11, metrics_port=4)
    assert read_records(tmp_path) == [
        ServiceRecord("learner", 0, os.getpid(), "127.0.0.1:1", 3),
        ServiceRecord("sampler", 11, os.getpid(), "", 4),
    ]


def test_an_unreadable_record_is_passed_over(tmp_path: Path) -> None:
    announce(tmp_path, "learner", 0)
    (tmp_path / FOLDER / "sampler-0.json").write_text("{")
    assert [record.name for record in read_records(tmp_path)] == ["learner-0"]


def test_without_a_folder_nothing_is_announced() -> None:
    announce(None, "sampler", 0)


def test_the_endpoint_serves_the_own_registry_and_build_info() -> None:
    metrics = ServiceMetrics(CollectorRegistry())
    metrics.identify("digest16")
    metrics.transitions.labels(state="trained", reason="").inc(5)
    port = start_metrics_server("127.0.0.1", 0, metrics.registry)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        text = response.read().decode()
    assert 'headrace_transitions_total{reason="",state="trained"} 5.0' in text
    assert 'config_digest="digest16"' in text


def test_a_taken_port_is_a_configuration_error() -> None:
    port = start_metrics_server("127.0.0.1", 0, CollectorRegistry())
    with pytest.raises(ConfigurationError, match=f"network.metrics_port: port {port} on 127.0.0.1 is taken"):
        start_metrics_server("127.0.0.1", port, CollectorRegistry())
