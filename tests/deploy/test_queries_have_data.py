"""A real Prometheus that watches real runs has data for every panel and every rule."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from live_run import LiveRun
from local_run import small_document
from observing import DASHBOARDS, alerts, expressions, recorded, selectors
from prometheus_server import PrometheusServer, targets_of

from headrace.local.ports import is_free, pick_port
from services.learner.metrics import WAITS_FOR
from services.sampler.metrics import THROTTLED_BY

PROMETHEUS = shutil.which("prometheus")
HOST = "127.0.0.1"
DEADLINE_S = 150.0
ENDLESS = {"stop": {"wall_s": 3600}}
ROUNDS = (
    "paramserver-0",
    "relay-0",
    "learner-0",
    "learner-1",
    "sampler-0",
    "sampler-1",
    "evaluator-0",
)
REPLAY = ("paramserver-0", "replay-0", "learner-0", "sampler-0")


def rounds_document() -> dict[str, Any]:
    """Two learners that hand their work in to rounds, a relay, and evaluations."""
    return small_document(
        run=ENDLESS,
        learner={"count": 2},
        sampler={"count": 2},
        sync={"mode": "sync"},
        paramserver={"relays": 1, "checkpoint_every": 5},
        evaluation={"enabled": True, "interval_s": 0.5, "episodes": 2, "lanes": 2},
        network={"metrics_port": first_free_port(len(ROUNDS))},
    )


def replay_document() -> dict[str, Any]:
    """One learner that draws from both tiers of replay."""
    document = small_document(
        run=ENDLESS,
        replay={
            "hot_capacity_bytes": 2**16,
            "samples_per_insert": 4,
            "min_size_to_sample": 300,
            "selector": "prioritized",
            "cold": "required",
        },
        network={"metrics_port": first_free_port(len(REPLAY))},
    )
    document["algorithm"] = {"name": "dqn", "batch_size": 32, "gradient_steps": 8}
    return document


def first_free_port(count: int) -> int:
    """The first of ``count`` neighbouring ports that are free."""
    rng = random.Random()
    while True:
        first = pick_port(HOST, rng, set())
        if all(is_free(HOST, first + offset) for offset in range(count)):
            return first


def questions() -> dict[str, str]:
    """Everything that must have data, with the place that asks it. Of alerts: each series they look at."""
    asked = {name: f"recorded as {name}" for name in recorded()}
    for name, rule in alerts().items():
        asked |= {selector.text: name for selector in selectors(rule["expr"])}
    for path in DASHBOARDS:
        for title, expression in expressions(path):
            filled = expression.replace('"$namespace"', '~".*"').replace("$pod", ".*")
            asked[filled.replace("$__rate_interval", "15s")] = f"{path.stem}: {title}"
    return asked


@pytest.mark.slow
@pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus is not on the path (Debian's package prometheus has it)"
)
def test_every_query_of_rules_and_dashboards_has_data(tmp_path: Path) -> None:
    assert PROMETHEUS is not None
    (tmp_path / "rounds").mkdir()
    (tmp_path / "replay").mkdir()
    port = pick_port(HOST, random.Random(), set())
    with (
        LiveRun(tmp_path / "rounds", rounds_document()) as rounds,
        LiveRun(tmp_path / "replay", replay_document()) as replay,
    ):
        for run, names in ((rounds, ROUNDS), (replay, REPLAY)):
            for name in names:
                run.wait_until(lambda run=run, name=name: run.record(name) is not None, name)  # type: ignore[misc]
        targets = targets_of(rounds.folder, "rounds") + targets_of(replay.folder, "replay")
        assert len(targets) == len(ROUNDS) + len(REPLAY)
        with PrometheusServer(PROMETHEUS, tmp_path / "prometheus", port, targets) as prometheus:
            prometheus.wait_ready()
            unanswered = answer_all(prometheus, questions())
            problems = prometheus.rule_problems()
            waits = prometheus.label_values("headrace_learner_wait_seconds_total", "reason")
            throttles = prometheus.label_values("headrace_sampler_throttled_seconds_total", "reason")
        for run in (rounds, replay):
            run.process.send_signal(signal.SIGINT)
        ends = [run.finish().exit_code for run in (rounds, replay)]
    assert unanswered == {}
    assert problems == []
    assert waits == set(WAITS_FOR), "what learners wait for is known from the start"
    assert throttles == set(THROTTLED_BY), "what throttles samplers is known from the start"
    assert ends == [0, 0]


def answer_all(prometheus: PrometheusServer, asked: dict[str, str]) -> dict[str, str]:
    """Ask again and again what has had no data yet; returns what never had any."""
    deadline = time.monotonic() + DEADLINE_S
    while asked and time.monotonic() < deadline:
        asked = {query: place for query, place in asked.items() if not prometheus.has_data(query)}
        time.sleep(0.5 if asked else 0.0)  # the next scrape is a second away
    return asked
