"""Two learners in all-reduce come to the same parameters as two whose gradients meet in a round."""

from __future__ import annotations

import threading
from collections.abc import Callable

import environments
import learning
import numpy as np
import numpy.typing as npt
import pytest

from headrace.checkpoint import Blob, VersionRecord
from headrace.config.sections import Config
from headrace.nets.actor import make_actor
from headrace.rl.algorithm import Algorithm, make_algorithm
from headrace.rl.all_reduce import AllReduce
from headrace.rl.batch import stack_fragments
from headrace.rl.gradient_sum import GradientSum
from headrace.sync.contribution import Contribution, Group
from headrace.types import Batch, PolicyVersion, TrainingReport
from services.paramserver.rounds.model import Part, SharedModel

UPDATES = 4
KIND = "vector_discrete"
VERSION = PolicyVersion(1, 0)


def make(config: Config) -> Algorithm:
    return make_algorithm(config, learning.case_spec(KIND))


def batches(config: Config) -> list[list[Batch]]:
    """For each update one batch for each of two learners, of different sizes."""
    actor = make_actor(config, learning.case_spec(KIND))
    actor.load(make(config).acting_parameters())

    def batch(seed: int, lanes: int) -> Batch:
        space = environments.SPACES[KIND][0]
        return stack_fragments([learning.acted_fragment(actor, config, space, seed=seed, num_lanes=lanes)])

    return [[batch(10 * update, 4), batch(10 * update + 1, 6)] for update in range(UPDATES)]


def through_rounds(config: Config, work: list[list[Batch]]) -> npt.NDArray[np.float32]:
    learners = [make(config), make(config)]
    sums = [GradientSum(), GradientSum()]
    for learner, gradients in zip(learners, sums, strict=True):
        learner.shared.join(gradients)
    layout = learners[0].shared.layout
    acting, training = (
        Blob.encode(learners[0].acting_parameters()),
        Blob.encode(learners[0].training_state()),
    )
    report = TrainingReport(0, 0, 0, 0, None, None, {})
    record = VersionRecord(VERSION, "run", "digest", "{}", report, (), acting, training)
    model = SharedModel(config, layout, record)
    for update in work:
        parts = []
        for learner, gradients, batch in zip(learners, sums, update, strict=True):
            rate = learner.update(batch, progress=0.0)["learning_rate"]
            vector, rows = gradients.take(layout.size)
            contribution = Contribution(1, VERSION, "gradient", vector, rows, rate)
            parts.append(Part(contribution, 1.0, model.values, rows))
        model.step(parts)
        for learner in learners:
            learner.shared.load_values(model.values)
    return model.values


def in_a_group(config: Config, work: list[list[Batch]]) -> list[npt.NDArray[np.float32]]:
    learners = [make(config), make(config)]
    peers = [AllReduce("127.0.0.1", device="cpu", timeout_s=60.0) for _ in learners]

    def learn(rank: int) -> None:
        peers[rank].enter(Group(1, rank, 2, peers[0].rendezvous))
        learners[rank].shared.join(peers[rank])
        for update in work:
            learners[rank].update(update[rank], progress=0.0)

    run_together([lambda rank=rank: learn(rank) for rank in range(2)])  # type: ignore[misc]
    return [learner.shared.values() for learner in learners]


def run_together(tasks: list[Callable[[], None]]) -> None:
    """Run in threads; raises what any of them raises."""
    errors: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    if errors:
        raise errors[0]


@pytest.mark.parametrize("name", ["a2c", "impala", "a3c"])
def test_all_reduce_over_two_equals_sync_over_two(name: str) -> None:
    config = learning.make_config(name, learner={"count": 2}, sampler={"count": 2})
    work = batches(config)
    first, second = in_a_group(config, work)
    assert np.array_equal(first, second), "members of a group must not drift apart"
    together = through_rounds(config, work)
    scale = np.abs(together).max()
    assert np.abs(first - together).max() <= 1e-6 * scale
    assert np.abs(together - make(config).shared.values()).max() > 1e-4 * scale, "nothing was learned"


@pytest.mark.parametrize("name", ["ppo", "appo"])
def test_members_of_a_group_never_drift_apart(name: str) -> None:
    algorithm = {"epochs": 3, "minibatch_size": 16, "target_kl": 0.02, "learning_rate": 0.01}
    config = learning.make_config(name, learner={"count": 2}, sampler={"count": 2}, algorithm=algorithm)
    first, second = in_a_group(config, batches(config))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, make(config).shared.values())
