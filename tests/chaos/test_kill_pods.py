"""Pods of one run killed, started again, replaced and scaled at random: it goes on, and its books balance."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from local_run import small_document
from pods import Pod, Pods

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

BLOWS = 10
STEPS_BETWEEN = 300
LEFT = (0, -signal.SIGTERM)
"""Exit codes of a sampler that was told to go; one that has only just begun has nothing to drain."""


class Cluster:
    """A run with two learners, and what may happen to its pods."""

    def __init__(self, pods: Pods, rng: random.Random) -> None:
        self._pods = pods
        self._rng = rng
        self._paramserver = pods.stateful("paramserver")
        self._learners = [pods.stateful("learner", index) for index in range(2)]
        self.samplers = [pods.sampler() for _ in range(3)]
        self.blows = {
            "paramserver": lambda: self._paramserver.restart_container(),
            "learner": lambda: rng.choice(self._learners).restart_container(),
            "sampler's container": lambda: rng.choice(self.samplers).restart_container(),
            "sampler's node": self._lose_a_sampler,
            "scale up": lambda: self.samplers.append(pods.sampler()),
            "scale down": self._scale_down,
        }

    def _lose_a_sampler(self) -> None:
        """Gone with all it had; the deployment starts another pod."""
        self._pick().kill()
        self.samplers.append(self._pods.sampler())

    def _scale_down(self) -> None:
        if len(self.samplers) > 2:
            assert self._pick().terminate() in LEFT
        else:
            self.samplers.append(self._pods.sampler())

    def _pick(self) -> Pod:
        return self.samplers.pop(self._rng.randrange(len(self.samplers)))


def test_whatever_happens_to_pods_the_run_goes_on_and_its_books_balance(tmp_path: Path) -> None:
    rng = random.Random(7)
    document = small_document(
        run={"stop": {"env_steps": 10**9}},
        learner={"count": 2},
        sampler={"count": 2, "fragment_length": 16},
        sync={"mode": "soft_sync", "max_policy_lag": 4},
    )
    with Pods(tmp_path / "pods", document) as pods:
        cluster = Cluster(pods, rng)
        pods.train(STEPS_BETWEEN)
        versions = []
        # Each kind at least once.
        kinds = list(cluster.blows) + rng.choices(list(cluster.blows), k=BLOWS - len(cluster.blows))
        rng.shuffle(kinds)
        for kind in kinds:
            cluster.blows[kind]()
            pods.wait_until(lambda: pods.view() is not None, what=f"the paramserver answers after: {kind}")
            pods.train(STEPS_BETWEEN)
            versions.append(pods.newest_number())
        assert versions == sorted(versions)
        for pod in cluster.samplers:
            assert pod.terminate() in LEFT
        pods.client.stop("interrupted", "enough")
        ledger = pods.ledger()
        assert ledger.balanced, ledger.problems
        assert ledger.trained == pods.trained()
