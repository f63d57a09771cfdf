"""Several learners, killed in any order: the run goes on and accounts for every transition."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from live_run import LiveRun
from local_run import REPOSITORY

MODES: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "all_reduce": {"mode": "all_reduce"},
}


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", MODES)
def test_learners_come_and_go_and_nothing_is_counted_twice(tmp_path: Path, mode: str) -> None:
    document = yaml.safe_load((REPOSITORY / "configs" / "cartpole-a2c.yaml").read_text("utf-8"))
    document["run"]["stop"] = {"env_steps": 10**9}  # ends when everything has been tried
    document["restart"] = {"max_restarts": 100, "backoff_s": 0.1, "max_backoff_s": 0.5}
    document |= {"learner": {"count": 2}, "sampler": {**document.get("sampler", {}), "count": 2}}
    document["sync"] = MODES[mode]
    document["evaluation"] = {"enabled": False}
    order = random.Random(3)
    victims = ["learner-0", "paramserver-0", "sampler-1", "learner-1"]
    order.shuffle(victims)

    with LiveRun(tmp_path, document) as run:
        for victim in victims:
            run.advance(order.randint(5, 15))
            run.kill(victim)
        run.advance(20)
        run.process.send_signal(signal.SIGINT)
        finished = run.finish()

    summary = finished.summary
    assert summary["status"] == "interrupted", summary["reason"]
    assert sum(summary["restarts"].values()) == len(victims)
    assert run.seen == sorted(run.seen), "a version fell"
    assert summary["ledger"]["balanced"] is True
    assert summary["ledger"]["trained"] == summary["env_steps"], "something was trained twice, or not counted"
    assert set(summary["ledger"]["lost"]) <= {"sampler_killed"}, "only a killed sampler may lose anything"
