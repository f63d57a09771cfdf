"""Gradients that are handed in instead of stepped along."""

from __future__ import annotations

import math
from typing import Any

import environments
import learning
import numpy as np
import pytest
import torch

from headrace.nets.actor import make_actor
from headrace.rl.algorithm import Algorithm, make_algorithm
from headrace.rl.batch import stack_fragments
from headrace.rl.gradient_sum import GradientSum
from headrace.rl.learnable import Learnable
from headrace.rl.optimizers import Adam
from headrace.types import REWARD, Batch, Fragment

SPEC = learning.case_spec("vector_discrete")
SPACE = environments.SPACES["vector_discrete"][0]


def make(name: str, **algorithm: Any) -> tuple[Algorithm, GradientSum]:
    config = learning.make_config(name, algorithm={"normalize_advantage": False, **algorithm})
    learner, gradients = make_algorithm(config, SPEC), GradientSum()
    learner.shared.join(gradients)
    return learner, gradients


def make_fragments(algorithm: Algorithm, count: int) -> list[Fragment]:
    """None follows another: advantages of a fragment whose successor is in the batch reach into that."""
    config = learning.make_config("a2c")
    actor = make_actor(config, SPEC)
    actor.load(algorithm.acting_parameters())
    return [
        learning.acted_fragment(actor, config, SPACE, num_steps=6, num_lanes=3, seed=i, sequence=2 * i)
        for i in range(count)
    ]


def stacked(fragments: list[Fragment]) -> Batch:
    return stack_fragments(fragments, [0] * len(fragments))


def bits(algorithm: Algorithm) -> bytes:
    return algorithm.shared.values().tobytes()


@pytest.mark.parametrize("name", ["a2c", "a3c", "impala"])
@pytest.mark.parametrize("cut", [2, 1], ids=["halves", "unequal parts"])
def test_the_gradient_of_parts_is_that_of_the_whole_batch(name: str, cut: int) -> None:
    algorithm, gradients = make(name)
    size, fragments = algorithm.shared.layout.size, make_fragments(algorithm, 4)
    algorithm.update(stacked(fragments), progress=0.0)
    whole, rows = gradients.take(size)
    for part in (fragments[:cut], fragments[cut:]):
        algorithm.update(stacked(part), progress=0.0)
    parts, rows_of_parts = gradients.take(size)
    assert rows == rows_of_parts == 4 * 6 * 3
    largest = float(np.abs(whole).max())
    assert largest > 1e-3
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-6 * largest)


def test_whoever_collects_takes_no_step() -> None:
    algorithm, _ = make("a2c")
    before = bits(algorithm)
    algorithm.update(stacked(make_fragments(algorithm, 1)), progress=0.0)
    assert bits(algorithm) == before


def test_one_gradient_alone_is_handed_in_bit_for_bit_and_unclipped() -> None:
    algorithm, gradients = make("a2c", max_grad_norm=1e-3)
    metrics = algorithm.update(stacked(make_fragments(algorithm, 1)), progress=0.0)
    taken, _ = gradients.take(algorithm.shared.layout.size)
    norm = float(np.linalg.norm(taken.astype(np.float64)))
    assert norm > 1e-3
    assert norm == pytest.approx(metrics["grad_norm"], rel=1e-5)


def test_what_was_taken_is_not_handed_in_again() -> None:
    algorithm, gradients = make("a2c")
    algorithm.update(stacked(make_fragments(algorithm, 1)), progress=0.0)
    size = algorithm.shared.layout.size
    first, _ = gradients.take(size)
    kept = first.copy()
    empty, rows = gradients.take(size)
    assert (rows, empty.any()) == (0, False)
    algorithm.update(stacked(make_fragments(algorithm, 2)), progress=0.0)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("name", ["a2c", "impala"])
def test_a_gradient_that_is_not_finite_is_not_collected(name: str) -> None:
    algorithm, gradients = make(name, max_grad_norm=0.5)
    good, bad = make_fragments(algorithm, 2)
    algorithm.update(stacked([good]), progress=0.0)
    poisoned = stacked([bad])
    poisoned.columns[REWARD][2, 1] = np.nan
    assert algorithm.update(poisoned, progress=0.0)["non_finite"] == 1
    collected, rows = gradients.take(algorithm.shared.layout.size)
    algorithm.update(stacked([good]), progress=0.0)
    alone, rows_alone = gradients.take(algorithm.shared.layout.size)
    assert rows == rows_alone
    assert collected.tobytes() == alone.tobytes()


class Recorder:
    """Peers that note what they are asked, and answer what they are told to."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.rows: list[int] = []

    def combine(self, gradients: torch.Tensor, rows: int) -> bool:
        self.rows.append(rows)
        if rows == 0:
            gradients.fill_(1.0)  # those of the others
        return self.answer

    def agree(self, number: int) -> int:
        return number


def make_learnable(gradient: float) -> tuple[torch.Tensor, Learnable]:
    values, gradients = torch.zeros(3), torch.full((3,), gradient)
    return values, Learnable(gradients, Adam(values, gradients, epsilon=1e-8), max_norm=None)


@pytest.mark.parametrize(
    ("gradient", "term"), [(math.nan, 0.0), (math.inf, 0.0), (1.0, math.nan)], ids=["nan", "inf", "term"]
)
def test_without_peers_a_gradient_that_is_not_finite_makes_no_step(gradient: float, term: float) -> None:
    values, learnable = make_learnable(gradient)
    assert not math.isfinite(learnable.step(0.1, term, rows=4))
    assert not values.any()


def test_peers_are_told_that_a_gradient_that_is_not_finite_is_of_no_rows_and_step_along_theirs() -> None:
    values, learnable = make_learnable(math.nan)
    learnable.peers = peers = Recorder(answer=True)
    assert math.isnan(learnable.step(0.1, rows=4))
    assert peers.rows == [0]
    np.testing.assert_allclose(values, -0.1, rtol=1e-5)


def test_peers_say_whether_there_is_a_step() -> None:
    values, learnable = make_learnable(1.0)
    learnable.peers = peers = Recorder(answer=False)
    assert learnable.step(0.1, rows=4) == pytest.approx(math.sqrt(3))
    assert peers.rows == [4]
    assert not values.any()


def test_a_step_with_others_adds_nothing_and_alone_does_nothing() -> None:
    values, learnable = make_learnable(5.0)
    learnable.step_with_others(0.1)
    assert not values.any()
    learnable.peers = peers = Recorder(answer=True)
    learnable.step_with_others(0.1)
    assert peers.rows == [0]
    np.testing.assert_allclose(values, -0.1, rtol=1e-5)
