"""Samplers as pods: given their place, scaled to nothing and back, and all of it is in the books."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from local_run import small_document
from pods import Pods

from headrace.local.redis import LocalRedis

pytestmark = pytest.mark.slow

ENOUGH = 2000


def endless(**sections: dict[str, Any]) -> dict[str, Any]:
    """A run that nothing ends but the test."""
    stop = {"seed": 3, "stop": {"env_steps": 10**9}}
    return small_document(run=stop, paramserver={"checkpoint_every": 10}, **sections)


@contextmanager
def on_policy(tmp_path: Path, learners: int = 1, **sections: dict[str, Any]) -> Iterator[Pods]:
    document = endless(
        learner={"count": learners}, sampler={"fragment_length": 16, "count": learners}, **sections
    )
    with Pods(tmp_path / "pods", document) as pods:
        pods.stateful("paramserver")
        for index in range(learners):
            pods.stateful("learner", index)
        yield pods


def test_samplers_scaled_to_nothing_and_back_leave_balanced_books(tmp_path: Path) -> None:
    with on_policy(tmp_path) as pods:
        first = [pods.sampler(), pods.sampler()]
        pods.train(ENOUGH)
        assert sorted(pods.members()) == sorted(pod.name for pod in first)
        assert [pod.terminate() for pod in first] == [0, 0]
        assert pods.members() == []
        between = pods.ledger()
        # Who drains hands over all it has: what is not trained on was never finished.
        assert (between.balanced, between.lost) == (True, {}), between
        second = [pods.sampler() for _ in range(3)]
        pods.train(ENOUGH)
        assert {member.id for member in pods.ledger().members} <= {"sampler-0", "sampler-1", "sampler-2"}
        for pod in second:
            assert pod.terminate() == 0
        pods.client.stop("interrupted", "enough")
        after = pods.ledger()
        assert (after.balanced, after.incarnations, after.lost) == (True, 5, {}), after
        assert after.trained == pods.trained()


def test_a_container_that_is_started_again_keeps_its_number_and_tells_what_it_left(tmp_path: Path) -> None:
    with on_policy(tmp_path) as pods:
        pod = pods.sampler()
        pods.train(ENOUGH)
        pod.restart_container()
        pods.wait_until(
            lambda: [member.incarnation for member in pods.ledger().members] == [1],
            what="the same number, its second incarnation",
        )
        pods.train(ENOUGH)
        assert pods.members() == [pod.name]
        assert pod.terminate() == 0
        ledger = pods.ledger()
        assert (ledger.balanced, ledger.incarnations) == (True, 2), ledger


def test_the_paramserver_comes_back_to_the_samplers_that_are_there(tmp_path: Path) -> None:
    with on_policy(tmp_path) as pods:
        samplers = [pods.sampler(), pods.sampler()]
        pods.train(ENOUGH)
        paramserver = pods.pods[0]
        before = {member.name: member.id for member in pods.ledger().members}
        paramserver.restart_container()
        pods.wait_until(lambda: pods.view() is not None, what="the paramserver answers again")
        pods.train(ENOUGH)
        pods.wait_until(lambda: len(pods.members()) == len(samplers), what="both samplers are known again")
        assert {member.name: member.id for member in pods.ledger().members} == before
        assert [pod.terminate() for pod in samplers] == [0, 0]
        ledger = pods.ledger()
        assert (ledger.balanced, ledger.incarnations) == (True, 2), ledger


def test_samplers_are_spread_over_learners_and_change_over_when_one_has_too_few(tmp_path: Path) -> None:
    with on_policy(tmp_path, learners=2) as pods:
        samplers = [pods.sampler() for _ in range(4)]
        pods.train(ENOUGH)
        pods.wait_until(lambda: len(pods.members()) == len(samplers), what="all samplers have joined")
        members = pods.ledger().members
        assert sorted(member.learner for member in members) == [0, 0, 1, 1]
        leaving = {member.name for member in members if member.learner == 1}
        for pod in samplers:
            if pod.name in leaving:
                assert pod.terminate() == 0
        pods.wait_until(
            lambda: sorted(member.learner for member in pods.ledger().members) == [0, 1],
            what="one of the two that stay works for the other learner",
        )
        pods.train(ENOUGH)
        assert all(pod.process.poll() is None for pod in samplers if pod.name not in leaving)
        ledger = pods.ledger()
        assert (ledger.balanced, ledger.lost) == (True, {}), ledger


def test_probes_tell_starting_ready_and_draining_apart(tmp_path: Path) -> None:
    with Pods(tmp_path / "pods", endless()) as pods:
        learner = pods.stateful("learner")
        pods.wait_until(lambda: learner.alive, what="the learner lives")
        assert not learner.ready  # without its paramserver it can do nothing
        pods.stateful("paramserver")
        pods.wait_until(lambda: learner.ready, what="the learner is ready")
        sampler = pods.sampler()
        pods.wait_until(lambda: sampler.ready, what="the sampler is ready")
        assert sampler.terminate() == 0
        assert learner.terminate() == 0


def off_policy_document(**sections: dict[str, Any]) -> dict[str, Any]:
    """A CartPole DQN run whose hot tier holds about a thousand transitions."""
    replay = {
        "hot_capacity_bytes": 2**16,
        "samples_per_insert": 4,
        "min_size_to_sample": 300,
        "cold": "required",
    }
    document = endless(replay=replay, **sections)
    return document | {"algorithm": {"name": "dqn", "batch_size": 32, "gradient_steps": 8, "n_step": 3}}


def test_hot_tiers_that_come_and_go_leave_all_they_held_in_the_cold_one(
    tmp_path: Path, redis_server: LocalRedis
) -> None:
    with Pods(tmp_path / "pods", off_policy_document()) as pods:
        pods.stateful("paramserver")
        pods.stateful("replay", HEADRACE_REDIS=redis_server.url)
        pods.stateful("learner")
        for size in (2, 3):
            samplers = [pods.sampler(HEADRACE_SINK="auto") for _ in range(size)]
            pods.train(ENOUGH)
            assert [pod.terminate() for pod in samplers] == [0] * size
        replay = next(pod for pod in pods.pods if pod.name == "replay-0")
        pods.wait_until(lambda: pods.ledger().members == (), what="all have left")
        assert replay.terminate() == 0  # its last report has everything
        ledger = pods.ledger()
        assert (ledger.balanced, ledger.incarnations, ledger.lost) == (True, 5, {}), ledger
        assert ledger.stored == ledger.produced - sum(ledger.dropped.values())


def test_pods_of_another_configuration_wait_for_the_rest_instead_of_failing(tmp_path: Path) -> None:
    with on_policy(tmp_path) as pods:
        old = pods.sampler()
        pods.train(ENOUGH)
        changed = tmp_path / "changed.yaml"
        changed.write_text(pods.document.read_text("utf-8").replace("seed: 3", "seed: 4"), "utf-8")
        early = pods.sampler(HEADRACE_CONFIG=str(changed))
        pods.wait_until(lambda: early.log_says("configuration digest"), what="it is refused, and says why")
        for pod in pods.pods[:2]:
            pod.replace(HEADRACE_CONFIG=str(changed))
        pods.wait_until(lambda: pods.view() is not None, what="the paramserver answers again")
        pods.wait_until(lambda: early.name in pods.members(), what="the early one has its place")
        pods.train(ENOUGH)
        assert early.process.poll() is None
        # Refused by now, it may be in the middle of beginning again, with nothing to drain.
        assert old.terminate() in (0, -signal.SIGTERM)


def test_a_rolling_update_under_load_loses_nothing(tmp_path: Path) -> None:
    with on_policy(tmp_path) as pods:
        paramserver, learner = pods.pods
        old = [pods.sampler(), pods.sampler()]
        pods.train(ENOUGH)
        paramserver.replace()
        learner.replace()
        for pod in old:  # as a deployment does it: the new one first, then the old one leaves
            new = pods.sampler()
            pods.wait_until(lambda pod=new: pod.ready, what="the new pod is ready")
            assert pod.terminate() == 0
        pods.train(ENOUGH)
        pods.client.stop("interrupted", "enough")
        ledger = pods.ledger()
        assert (ledger.balanced, ledger.lost) == (True, {}), ledger
        assert all(pod.process.poll() is None for pod in pods.pods if pod not in old)


def test_learners_are_rolled_to_another_configuration_one_after_the_other(tmp_path: Path) -> None:
    with on_policy(tmp_path, learners=2, sync={"mode": "all_reduce"}) as pods:
        paramserver, first, second = pods.pods
        samplers = [pods.sampler(), pods.sampler()]
        pods.train(ENOUGH)
        changed = tmp_path / "changed.yaml"
        changed.write_text(pods.document.read_text("utf-8").replace("seed: 3", "seed: 4"), "utf-8")
        paramserver.replace(HEADRACE_CONFIG=str(changed))
        for pod in (second, first):  # a StatefulSet goes on only when the one before is ready
            pod.replace(HEADRACE_CONFIG=str(changed))
            pods.wait_until(lambda pod=pod: pod.ready, what=f"{pod.name} is ready")
        for pod in samplers:
            pod.replace(HEADRACE_CONFIG=str(changed))
        pods.train(ENOUGH)
        assert len(pods.members()) == len(samplers)
