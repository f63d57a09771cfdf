"""A shard speaks at once when that changes something for others, not for every item."""

from __future__ import annotations

import pytest

from headrace.replay.members import ShardStatus, ShardView
from headrace.replay.reporting import ReportRule, drift

RULE = ReportRule(rebalance_every=100, rebalance_drift=0.1, fragment_transitions=10)
TOLD = ShardStatus(mass=50.0, count=50, inserted=50, drawn=20)


@pytest.mark.parametrize(
    ("changes", "left", "at_once"),
    [
        ({"inserted": 60}, 11, False),
        ({"inserted": 60}, 10, True),
        ({}, 0, False),
        ({"inserted": 149}, 1000, False),
        ({"inserted": 150}, 1000, True),
        ({"inserted": 100, "drawn": 70}, 1000, True),
        ({"mass": 55.0}, 1000, False),
        ({"mass": 55.1}, 1000, True),
        ({"mass": 44.0}, 1000, True),
    ],
)
def test_what_is_told_at_once(changes: dict[str, float], left: int, at_once: bool) -> None:
    fields = {"mass": 50.0, "count": 50, "inserted": 50, "drawn": 20} | changes
    assert RULE.tells_news(TOLD, ShardStatus(**fields), left) is at_once  # type: ignore[arg-type]


def test_the_first_mass_is_told_at_once() -> None:
    assert RULE.tells_news(ShardStatus(), ShardStatus(mass=0.1, inserted=1), 1000)


def test_drift_is_the_total_variation_of_the_weights() -> None:
    def shards(*masses: float) -> list[ShardView]:
        return [ShardView(str(index), "", "hot", mass, 1) for index, mass in enumerate(masses)]

    assert drift(shards(1, 3), shards(2, 6)) == 0.0
    assert drift(shards(1, 3), shards(3, 1)) == 0.5
    assert drift(shards(1), shards(0, 1)) == 1.0
    assert drift(shards(0, 0), shards(1)) == 1.0
    assert drift(shards(), shards(0)) == 0.0
