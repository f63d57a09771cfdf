"""Scrapes become totals: over restarts of the processes, with shares and lag quantiles."""

from __future__ import annotations

import pytest

from headrace.local.aggregates import Aggregates, quantile_of
from headrace.local.scrape import Samples, fetch, parse
from headrace.metrics import start_metrics_server


def _sampler(steps: float, throttled: float) -> Samples:
    return parse(
        f"headrace_sampler_env_steps_total {steps}\n"
        f'headrace_sampler_throttled_seconds_total{{reason="credit"}} {throttled / 2}\n'
        f'headrace_sampler_throttled_seconds_total{{reason="permit"}} {throttled / 2}\n'
    )


def _learner(waited: float, zero: int, upto_one: int, all_of_them: int) -> Samples:
    return parse(
        f'headrace_learner_wait_seconds_total{{reason="data"}} {waited}\n'
        f'headrace_learner_trained_policy_lag_bucket{{le="0.0"}} {zero}\n'
        f'headrace_learner_trained_policy_lag_bucket{{le="1.0"}} {upto_one}\n'
        f'headrace_learner_trained_policy_lag_bucket{{le="+Inf"}} {all_of_them}\n'
        "headrace_learner_input_fill_ratio 0.25\n"
    )


def test_the_text_format_is_read_with_labels_and_without_comments() -> None:
    lines = (
        "# HELP a b",
        'a_total{x="1",y="q\\"uo,te"} 2.5',
        'a_total{x="2",y=""} 1e3',
        "b NaN",
        "a_created 5",
        "-",
    )
    samples = parse("\n".join(lines))
    assert samples.total("a_total") == 1002.5
    assert samples.by_label("a_total", "x") == {"1": 2.5, "2": 1000.0}
    assert samples.single("a_created") is None
    assert samples.single("missing") is None


def test_nobody_listening_is_none_not_an_error() -> None:
    assert fetch("127.0.0.1", 1, timeout_s=1.0) is None


def test_an_endpoint_is_scraped() -> None:
    from prometheus_client import CollectorRegistry, Counter

    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    samples = fetch("127.0.0.1", start_metrics_server("127.0.0.1", 0, registry))
    assert samples is not None
    assert samples.single("things_total") == 3


def test_counters_go_on_over_a_restart() -> None:
    totals = Aggregates()
    totals.observe("sampler-0", 10, _sampler(1000, 0), now=0.0)
    totals.observe("sampler-0", 10, _sampler(1500, 0), now=1.0)
    totals.observe("sampler-0", 11, _sampler(200, 0), now=5.0)
    totals.observe("sampler-1", 12, _sampler(50, 0), now=5.0)
    assert totals.env_steps == 1750


def test_shares_leave_out_the_start_of_each_process() -> None:
    totals = Aggregates()
    totals.observe("sampler-0", 10, _sampler(0, 30.0), now=0.0)  # waited for its first parameters
    totals.observe("sampler-0", 10, _sampler(0, 31.0), now=4.0)
    totals.observe("sampler-0", 11, _sampler(0, 20.0), now=50.0)
    totals.observe("sampler-0", 11, _sampler(0, 20.0), now=54.0)
    assert totals.throttled.ratio == pytest.approx(1 / 8)


def test_a_share_of_nothing_is_unknown() -> None:
    assert Aggregates().waited.ratio is None


def test_lag_quantiles_come_from_all_processes() -> None:
    totals = Aggregates()
    totals.observe("learner-0", 1, _learner(0, 50, 50, 50), now=0.0)
    totals.observe("learner-0", 1, _learner(0, 60, 90, 90), now=1.0)
    totals.observe("learner-0", 2, _learner(0, 0, 10, 11), now=2.0)
    assert totals.lags == {0.0: 60, 1.0: 41}
    assert totals.lag_quantile(0.5) == 0
    assert totals.lag_quantile(0.95) == 1
    assert totals.fill_ratio == 0.25


def test_quantile_of_known_counts() -> None:
    counts = {0.0: 1, 1.0: 1, 2.0: 1, 10.0: 1}
    assert [quantile_of(counts, q) for q in (0.25, 0.5, 0.75, 1.0)] == [0.0, 1.0, 2.0, 10.0]
    assert quantile_of({}, 0.5) is None


def test_rates_come_from_two_marks() -> None:
    totals = Aggregates()
    totals.observe("sampler-0", 10, _sampler(100, 1.0), now=0.0)
    before = totals.mark(0.0)
    totals.observe("sampler-0", 10, _sampler(300, 2.0), now=4.0)
    after = totals.mark(4.0)
    assert (after.env_steps - before.env_steps) / (after.at - before.at) == 50
    assert after.throttled.since(before.throttled).ratio == 0.25


def test_rounds_are_told_where_learners_meet_in_them() -> None:
    totals = Aggregates()
    totals.observe("paramserver-0", 1, parse("headrace_paramserver_learners 0.0\n"), 0.0)
    assert totals.rounds == {}, "one learner publishes by itself"
    text = """headrace_paramserver_learners 3.0
headrace_paramserver_gradients_total{outcome="applied"} 6.0
headrace_paramserver_gradients_total{outcome="late"} 3.0
headrace_paramserver_gradients_total{outcome="stale"} 1.0
headrace_paramserver_gradient_lag_count 10.0
headrace_paramserver_gradient_lag_sum 15.0
"""
    totals.observe("paramserver-0", 1, parse(text), 1.0)
    assert totals.rounds == {"learners": 3.0, "contribution_lag": 1.5, "refused": 0.1}
    chosen = "headrace_paramserver_local_steps 32.0\nheadrace_paramserver_idle_share 0.25\n"
    totals.observe("paramserver-0", 1, parse(text + chosen), 2.0)
    assert totals.rounds["local_steps"] == 32.0
    assert totals.rounds["idle_share"] == 0.25
