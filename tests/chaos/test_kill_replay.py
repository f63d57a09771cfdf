"""Kill -9 whoever serves replay, in whatever order: the run finishes, learns, and the ledger balances."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from live_run import LiveRun
from local_run import REPOSITORY

KILLS = 10
TARGETS = ("sampler-0", "sampler-1", "replay-0", "redis-0", "learner-0", "paramserver-0")


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_kills_of_replay_and_of_all_around_it_lose_nothing_without_saying_so(tmp_path: Path) -> None:
    document = yaml.safe_load((REPOSITORY / "configs" / "cartpole-dqn.yaml").read_text("utf-8"))
    document["run"]["stop"] = {"env_steps": 45_000}
    document["restart"] = {"max_restarts": 100, "backoff_s": 0.1, "max_backoff_s": 0.5}
    document["sampler"] |= {"count": 2, "fragment_length": 16}
    document["algorithm"] |= {"gradient_steps": 32, "batch_size": 32, "n_step": 3}
    # A hot tier of about 4,000 transitions, so that most of the experience is cold.
    document["replay"] |= {
        "hot_capacity_bytes": 2**18,
        "selector": "prioritized",
        "samples_per_insert": 8,
        "cold": "required",
    }
    order = random.Random(11)
    victims = [*TARGETS, *order.choices(TARGETS, k=KILLS - len(TARGETS))]
    order.shuffle(victims)

    with LiveRun(tmp_path, document) as run:
        for victim in victims:
            run.advance(order.randint(3, 10))
            run.kill(victim)
        finished = run.finish()

    assert finished.exit_code == 0, finished.output
    summary, ledger = finished.summary, finished.summary["ledger"]
    assert summary["status"] == "finished"
    assert sum(summary["restarts"].values()) == KILLS
    assert run.seen == sorted(run.seen), "a version fell"
    assert ledger["balanced"] is True
    assert set(ledger["lost"]) <= {"sampler_killed", "redis_lost"}
    assert ledger["stored"] > ledger["produced"] / 2
    assert summary["cold_tier"]["stored"] > 0
