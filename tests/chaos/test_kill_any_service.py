"""Kill -9 whoever, in whatever order: the run finishes, learns, and loses nothing without saying so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from live_run import LiveRun
from local_run import REPOSITORY, read_events

from headrace.accounts import read_accounts

KILLS = 10
TARGETS = ("sampler-0", "learner-0", "paramserver-0")


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_ten_kills_in_random_order_cost_nothing_but_time(tmp_path: Path) -> None:
    document = yaml.safe_load((REPOSITORY / "configs" / "cartpole-ppo.yaml").read_text("utf-8"))
    document["run"]["stop"] = {"env_steps": 100_000}
    document["restart"] = {"max_restarts": 100, "backoff_s": 0.1, "max_backoff_s": 0.5}
    order = random.Random(7)
    victims = [*TARGETS, *order.choices(TARGETS, k=KILLS - len(TARGETS))]
    order.shuffle(victims)

    with LiveRun(tmp_path, document) as run:
        for victim in victims:
            run.advance(order.randint(2, 12))
            run.kill(victim)
        finished = run.finish()

    assert finished.exit_code == 0, finished.output
    summary = finished.summary
    assert summary["status"] == "finished"
    assert sum(summary["restarts"].values()) == KILLS
    assert run.seen == sorted(run.seen), "a version fell"
    assert summary["ledger"]["balanced"] is True
    assert summary["ledger"]["trained"] == summary["env_steps"], "something was trained twice, or not counted"
    assert set(summary["ledger"]["lost"]) <= {"sampler_killed"}, "only a killed sampler may lose anything"
    lives = len(read_accounts(finished.folder))
    at_most = lives * 3 * document["environment"]["lanes"] * document["sampler"]["fragment_length"]
    assert sum(summary["ledger"]["lost"].values()) <= at_most
    assert not read_events(finished.folder, "gap")
    assert summary["return"]["best_eval"] >= 475
