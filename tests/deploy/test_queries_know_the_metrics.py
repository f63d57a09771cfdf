"""Rules and dashboards ask for nothing that no process serves."""

from __future__ import annotations

import pytest
from observing import (
    DASHBOARDS,
    TARGET_LABELS,
    Known,
    alerts,
    expressions,
    grouping_labels,
    known_series,
    recorded,
    selectors,
)

# Values that a label takes only when there is something to count, with the module that makes them.
LATER = {
    ("headrace_transitions_total", "state"): {"discarded"},  # services.sampler.metrics
    ("headrace_sampler_throttled_seconds_total", "reason"): {"drain"},  # headrace.clients.fragments
    ("headrace_replay_samples_total", "tier"): {"hot", "cold"},  # of samplers and of replay
    ("headrace_paramserver_ledger", "state"): {"produced"},  # headrace.flow.ledger
}


@pytest.fixture(scope="module")
def known() -> Known:
    return known_series()


def queries() -> dict[str, list[tuple[str, str]]]:
    """Places and expressions, by where they are from."""
    return {
        "recording": list(recorded().items()),
        "alerts": [(name, rule["expr"]) for name, rule in alerts().items()],
        **{path.stem: list(expressions(path)) for path in DASHBOARDS},
    }


QUERIES = queries()
everywhere = pytest.mark.parametrize("source", QUERIES)


@everywhere
def test_every_series_exists_with_these_labels(source: str, known: Known) -> None:
    for place, expression in QUERIES[source]:
        found = selectors(expression)
        assert found, place
        for selector in found:
            assert selector.name in known.labels, f"{place}: no process serves {selector.name}"
            labels = {label for label, _value in selector.matchers}
            assert labels <= known.labels[selector.name] | TARGET_LABELS, f"{place}: {selector.text}"


@everywhere
def test_every_value_that_is_asked_for_is_one_that_the_label_takes(source: str, known: Known) -> None:
    for place, expression in QUERIES[source]:
        for selector in selectors(expression):
            for label, value in selector.matchers:
                if label in TARGET_LABELS or selector.name == "ALERTS":
                    continue
                key = (selector.name, label)
                unknown = set(value.split("|")) - known.values.get(key, set()) - LATER.get(key, set())
                assert not unknown, f"{place}: {selector.name} never has {label}={sorted(unknown)}"


@everywhere
def test_every_label_that_is_grouped_by_exists(source: str, known: Known) -> None:
    for place, expression in QUERIES[source]:
        there = set(TARGET_LABELS).union(*(known.labels[one.name] for one in selectors(expression)))
        assert grouping_labels(expression) <= there, place


def test_every_recorded_series_is_used_or_meant_for_autoscaling() -> None:
    everything = " ".join(expression for source in QUERIES.values() for _place, expression in source)
    used = {selector.name for selector in selectors(everything)}
    autoscaling = {"headrace:sampler_throttled_share:rate1m", "headrace:learner_wait_share:rate1m"}
    assert set(recorded()) - used - autoscaling == set()
