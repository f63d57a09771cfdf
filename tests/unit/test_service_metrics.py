"""What services' metrics say before anything has happened, and once the run has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from paramserving import make_settings
from prometheus_client import CollectorRegistry

from headrace.events import EventLog
from headrace.metrics import ServiceMetrics
from services.learner.metrics import LearnerMetrics
from services.paramserver.core import ParameterServer
from services.paramserver.metrics import ParamserverMetrics
from services.replay.metrics import ReplayMetrics
from services.sampler.metrics import SamplerMetrics


@pytest.mark.parametrize(
    ("kind", "name", "labels"),
    [
        (SamplerMetrics, "headrace_sampler_throttled_seconds_total", {"reason": "credit"}),
        (SamplerMetrics, "headrace_sampler_environment_restarts_total", {"reason": "fault_hang"}),
        (SamplerMetrics, "headrace_transitions_total", {"state": "produced", "reason": ""}),
        (LearnerMetrics, "headrace_learner_wait_seconds_total", {"reason": "samplers"}),
        (LearnerMetrics, "headrace_learner_contributions_total", {"outcome": "stale"}),
        (LearnerMetrics, "headrace_transitions_total", {"state": "dropped", "reason": "stale"}),
        (ParamserverMetrics, "headrace_paramserver_publishes_total", {"outcome": "refused"}),
        (ParamserverMetrics, "headrace_paramserver_gradients_total", {"outcome": "invalid"}),
        (ParamserverMetrics, "headrace_paramserver_rounds_total", {"closed_by": "deadline"}),
        (ReplayMetrics, "headrace_replay_limited_seconds_total", {"reason": "insert"}),
        (ReplayMetrics, "headrace_replay_dropped_total", {"reason": "redis_lost"}),
    ],
)
def test_a_series_with_a_known_label_begins_at_zero(
    kind: type[ServiceMetrics], name: str, labels: dict[str, str]
) -> None:
    assert kind(CollectorRegistry()).registry.get_sample_value(name, labels) == 0.0


def test_the_parameter_server_says_when_the_run_has_ended(tmp_path: Path) -> None:
    metrics = ParamserverMetrics(CollectorRegistry())
    core = ParameterServer(
        make_settings(tmp_path), events=EventLog(tmp_path, "paramserver-0"), metrics=metrics
    )
    try:
        assert metrics.registry.get_sample_value("headrace_paramserver_run_ended") == 0.0
        core.stop("interrupted", "Ctrl-C")
        assert metrics.registry.get_sample_value("headrace_paramserver_run_ended") == 1.0
    finally:
        core.close(5.0)
