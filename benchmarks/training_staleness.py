"""What stale gradients cost: learners take turns, so that every gradient is exactly so many versions old.

All in one process and the same for the same seed. Each virtual learner acts in lanes of its own with the
version it was given, computes A2C's gradient on what it saw, and hands it in; the parameter server's own
model steps along it, by its own rule of staleness. Only the processes are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np
import torch

from headrace.checkpoint import Blob, VersionRecord
from headrace.config.sections import Config
from headrace.rl.gradient_sum import GradientSum
from headrace.sync.aggregation import FlatArray
from headrace.sync.contribution import Contribution
from headrace.sync.staleness import StalenessRule
from headrace.testing.plain_loop import PlainLoop
from headrace.types import EPISODE_RETURN, PolicyVersion, TrainingReport
from services.paramserver.rounds.model import Part, SharedModel

LAGS: tuple[int | None, ...] = (0, 1, 2, 4, 8, 16, None)
"""None: lags at random, with a long tail."""
RULES = {
    "in full": StalenessRule(0, None, "none"),
    "down-weighted": StalenessRule(0, None, "inverse"),
    "dropped beyond 4": StalenessRule(4, 4, "none"),
}
MEAN_RANDOM_LAG = 8.0
MAX_RANDOM_LAG = 64
_RANDOM_LEARNERS = 8
_RETURNS = 100  # the newest episodes, of all learners, over which a return is a mean
_POINTS = 60  # of a curve
_STREAM = 2**20  # apart from the seeds of environments and actions


@dataclass(frozen=True, slots=True)
class Cell:
    """One training. ``lag`` None: at random."""

    lag: int | None
    rule: str
    seed: int


@dataclass(frozen=True, slots=True)
class Trained:
    """What came of it.

    ``curve``: environment steps and mean return of the newest episodes. ``final`` is its end, ``average``
    its mean. ``dropped`` and ``mean_weight`` are of all gradients computed, ``mean_lag`` of those applied.
    """

    lag: int | None
    rule: str
    seed: int
    env_steps: int
    gradients: int
    versions: int
    dropped: float
    mean_lag: float
    mean_weight: float
    final: float
    average: float
    curve: list[tuple[int, float]]


def make_config(seed: int, env_steps: int) -> Config:
    """The preset of A2C on CartPole, but for its length."""
    document: dict[str, Any] = {
        "environment": {"id": "CartPole-v1", "lanes": 16},
        "run": {"seed": seed, "stop": {"env_steps": env_steps}},
        "algorithm": {
            "name": "a2c",
            "batch_steps": 128,
            "gae_lambda": 1.0,
            "learning_rate": 1e-3,
            "learning_rate_schedule": "linear",
        },
        "sampler": {"fragment_length": 8, "count": 2},
        "learner": {"count": 2},
        "sync": {"mode": "async", "max_policy_lag": 2},
    }
    return Config.model_validate(document)


@dataclass(slots=True)
class Turn:
    """A learner, and the version that it was given last."""

    loop: PlainLoop
    number: int
    values: FlatArray


class Staleness:
    """One training: learners in turns before one shared model."""

    def __init__(self, cell: Cell, env_steps: int) -> None:
        self._config = make_config(cell.seed, env_steps)
        self._total = env_steps
        self._rule = RULES[cell.rule]
        self._lag = cell.lag
        self._rng = np.random.default_rng(np.random.SeedSequence(cell.seed, spawn_key=(_STREAM,)))
        learners = _RANDOM_LEARNERS if cell.lag is None else cell.lag + 1
        loops = [PlainLoop(self._config, sampler_index=index) for index in range(learners)]
        self._model = self._make_model(loops[0])
        self._turns = deque(Turn(loop, 0, self._model.values) for loop in loops)
        self._versions = deque([self._model.values], maxlen=MAX_RANDOM_LAG + 1)
        self._returns = deque[float](maxlen=_RETURNS)
        self._number = 0
        self._weights: list[float] = []
        self._applied_lags: list[int] = []
        self.curve: list[tuple[int, float]] = []
        self.env_steps = 0

    def run(self) -> None:
        """Train to the end."""
        every = max(1, self._total // _POINTS)
        while self.env_steps < self._total:
            self._step()
            if self._returns and self.env_steps // every > len(self.curve):
                self.curve.append((self.env_steps, fmean(self._returns)))

    def close(self) -> None:
        """Close the environments."""
        for turn in self._turns:
            turn.loop.close()

    def _step(self) -> None:
        """The learner whose turn it is hands in a gradient and gets the newest version."""
        turn = self._turns.popleft()
        number, values = (turn.number, turn.values) if self._lag is not None else self._drawn()
        contribution = self._gradient(turn.loop, number, values)
        lag = self._number - number
        judgement = self._rule.judge(lag)
        self._weights.append(judgement.factor)
        if judgement.factor > 0.0:
            self._applied_lags.append(lag)
            self._model.step([Part(contribution, judgement.factor, values, contribution.num_samples)])
            self._number += 1
            self._versions.append(self._model.values)
        self._turns.append(replace(turn, number=self._number, values=self._model.values))

    def _drawn(self) -> tuple[int, FlatArray]:
        """A version of the past: lags are geometric, with ``MEAN_RANDOM_LAG``, cut off where memory ends."""
        lag = int(self._rng.geometric(1.0 / (1.0 + MEAN_RANDOM_LAG))) - 1
        lag = min(lag, len(self._versions) - 1)
        return self._number - lag, self._versions[-1 - lag]

    def _gradient(self, loop: PlainLoop, number: int, values: FlatArray) -> Contribution:
        """Act with a version and compute the gradient there, on what was seen."""
        algorithm = loop.algorithm
        algorithm.shared.load_values(values)
        batch = loop.sample()
        self._returns.extend(batch.columns[EPISODE_RETURN].tolist())
        gradients = GradientSum()
        algorithm.shared.join(gradients)
        losses = algorithm.update(batch, progress=min(1.0, self.env_steps / self._total))
        self.env_steps += batch.num_transitions
        vector, rows = gradients.take(algorithm.shared.layout.size)
        return Contribution(
            len(self._weights) + 1,
            PolicyVersion(1, number),
            "gradient",
            vector,
            rows,
            learning_rate=losses["learning_rate"],
        )

    def _make_model(self, loop: PlainLoop) -> SharedModel:
        """The parameter server's model, at the first learner's initial parameters."""
        algorithm = loop.algorithm
        acting, training = Blob.encode(algorithm.acting_parameters()), Blob.encode(algorithm.training_state())
        report = TrainingReport(0, 0, 0, 0, None, None, {})
        record = VersionRecord(PolicyVersion(1, 0), "run", "", "{}", report, (), acting, training)
        return SharedModel(self._config, algorithm.shared.layout, record)

    def result(self, cell: Cell) -> Trained:
        """What it has come to."""
        returns = [mean for _, mean in self.curve]
        return Trained(
            lag=cell.lag,
            rule=cell.rule,
            seed=cell.seed,
            env_steps=self.env_steps,
            gradients=len(self._weights),
            versions=self._number,
            dropped=self._weights.count(0.0) / len(self._weights),
            mean_lag=fmean(self._applied_lags),
            mean_weight=fmean(self._weights),
            final=returns[-1],
            average=fmean(returns),
            curve=self.curve,
        )


def cells(seeds: Sequence[int], lags: Sequence[int | None] = LAGS) -> list[Cell]:
    """Every lag by every rule, but for those where the rule makes no difference."""
    return [
        Cell(lag, rule, seed)
        for seed in seeds
        for lag in lags
        for rule in RULES
        if rule == "in full" or (lag is None or RULES[rule].judge(lag).factor < 1.0)
    ]


def train(cell: Cell, env_steps: int) -> Trained:
    """One training from its beginning to its end."""
    training = Staleness(cell, env_steps)
    try:
        training.run()
        return training.result(cell)
    finally:
        training.close()


def measure_staleness(
    *, seeds: Sequence[int], env_steps: int, lags: Sequence[int | None] = LAGS
) -> list[Trained]:
    """All cells."""
    torch.set_num_threads(1)
    return [train(cell, env_steps) for cell in cells(seeds, lags)]


def lag_name(lag: int | None) -> str:
    """How a lag is written."""
    return "random" if lag is None else str(lag)


def show_staleness(found: Sequence[Trained]) -> None:
    """Print medians over the seeds."""
    one = found[0]
    seeds = len({each.seed for each in found})
    print(
        f"staleness: A2C on CartPole, {one.env_steps:,} environment steps = {one.gradients:,} gradients, "
        f"{seeds} seeds\n{'lag':>6} {'rule':18} {'lag of applied':>14} {'dropped':>8} {'weight':>7} "
        f"{'return at the end':>30} {'mean over the run':>18}"
    )
    for lag, rule in dict.fromkeys((each.lag, each.rule) for each in found):
        same = [each for each in found if (each.lag, each.rule) == (lag, rule)]
        ends = sorted(each.final for each in same)
        print(
            f"{lag_name(lag):>6} {rule:18} {median(each.mean_lag for each in same):14.1f} "
            f"{median(each.dropped for each in same):8.0%} {median(each.mean_weight for each in same):7.2f} "
            f"{f'{median(ends):.0f} ({ends[0]:.0f} to {ends[-1]:.0f})':>30} "
            f"{median(each.average for each in same):18.0f}"
        )
