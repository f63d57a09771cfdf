"""How fast rounds close, with learners that wait instead of computing: what a slow one costs the others.

A parameter server in a process of its own, learners as threads of this one, each with its stream. What they
bring is 0.3 MB of gradient; their "work" is to wait, so that three of them fit on any machine.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import numpy as np

from benchmarks.parameter_processes import DEADLINE_S, Servers, serving
from headrace.clients.parameters import PublishClient
from headrace.clients.rounds import RoundClient
from headrace.config.sections import Config
from headrace.sync.contribution import Contribution
from headrace.sync.layout import Layout
from headrace.sync.policies import staleness_rule
from headrace.types import TrainingReport

Mode = Literal["sync", "soft_sync", "async"]

MODES: tuple[Mode, ...] = ("sync", "soft_sync", "async")
LAYOUT = Layout(("network/weight",), ((75_000,),))
SLOWED = 5.0
WINDOW_SHARE = 0.1  # of the work
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Case:
    """``learners`` that take equally long, or (``slowed``) the last of them ``SLOWED`` times as long."""

    mode: Mode
    learners: int
    slowed: bool

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.learners}, one slowed" if self.slowed else f"{self.learners} equal"


CASES = tuple(Case(mode, *rest) for mode in MODES for rest in ((2, False), (3, False), (3, True)))


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer to one contribution; ``at`` on the monotonic clock."""

    at: float
    version: int
    outcome: str
    lag: int


@dataclass(frozen=True, slots=True)
class Session:
    """One case measured once.

    ``work_per_s``: contributions of an unslowed learner a second. Of the last learner: outcomes and
    ``counted``, the share of its work that counts, by weight.
    """

    mode: str
    case: str
    updates_per_s: float
    work_per_s: float
    outcomes: dict[str, int]
    counted: float


@dataclass(frozen=True, slots=True)
class RoundsResult:
    """All sessions. Per repeat, with one of three slowed over the two equal ones alone: updates per second,
    and the work that each of those two does per second.
    """

    work_ms: float
    sessions: list[Session] = field(default_factory=list)
    updates_kept: dict[str, list[float]] = field(default_factory=dict)
    work_kept: dict[str, list[float]] = field(default_factory=dict)


def make_config(mode: Mode, learners: int, work_s: float) -> Config:
    """A run of learners that hand in gradients."""
    document: dict[str, Any] = {
        "environment": {"id": "CartPole-v1"},
        "algorithm": {"name": "impala"},
        "run": {"stop": {"updates": 10**9}},
        "learner": {"count": learners},
        "sampler": {"count": learners},
        "sync": {"mode": mode, "window_s": WINDOW_SHARE * work_s, "max_policy_lag": 8},
        "paramserver": {"checkpoint_every": 10**9},
    }
    return Config.model_validate(document)


class Learner(threading.Thread):
    """Waits, hands in, hears, and again."""

    def __init__(self, index: int, run: Servers, work_s: float, together: threading.Barrier) -> None:
        super().__init__(name=f"learner-{index}", daemon=True)
        self._address = run.chain[0].address
        self._handshake = run.settings.handshake(self.name)
        self._work_s = work_s
        self._together = together
        self._stopping = threading.Event()
        self.heard: list[Heard] = []

    def run(self) -> None:
        """Join, wait for the others, then take part in rounds until told to stop."""
        publish = PublishClient(self._address, self._handshake)
        fetched = publish.fetch(with_training=False)
        publish.close()
        assert fetched is not None, "published before"
        client = RoundClient(
            self._address,
            self._handshake,
            learner_id=self.name,
            incarnation=time.monotonic_ns(),
            layout=LAYOUT,
            have=fetched.snapshot.version,
        )
        client.start()
        try:
            welcome = client.join(timeout_s=DEADLINE_S)
            if welcome is None:
                raise RuntimeError(f"{self.name} was not answered")
            self._together.wait(DEADLINE_S)
            self._work(client, welcome.version)
        finally:
            client.close()

    def stop(self) -> None:
        """Hand in nothing more."""
        self._stopping.set()

    def _work(self, client: RoundClient, version: Any) -> None:
        gradient = np.full(LAYOUT.size, 1e-3, np.float32)
        sequence = 0
        while not self._stopping.wait(self._work_s):
            sequence += 1
            contribution = Contribution(sequence, version, "gradient", gradient, 256, 1e-3)
            result = None
            while result is None and not self._stopping.is_set():
                result = client.exchange(contribution, timeout_s=_POLL_S)
            if result is None:
                return
            version = result.version
            self.heard.append(Heard(time.monotonic(), version.number, result.outcome, result.lag))


def measure(case: Case, run: Servers, work_s: float, seconds: float) -> Session:
    """One session of ``seconds``."""
    together = threading.Barrier(case.learners + 1)
    works = [work_s] * case.learners
    works[-1] *= SLOWED if case.slowed else 1.0
    learners = [Learner(index, run, work, together) for index, work in enumerate(works)]
    for learner in learners:
        learner.start()
    together.wait(DEADLINE_S)
    began = time.monotonic()
    time.sleep(seconds)
    for learner in learners:
        learner.stop()
    for learner in learners:
        learner.join(DEADLINE_S)
    return _session(case, run.settings.config, began, [learner.heard for learner in learners])


def _session(case: Case, config: Config, began: float, heard: Sequence[Sequence[Heard]]) -> Session:
    """Rates are from the first answer to the last, so that nothing half done counts."""
    answers = sorted((one for each in heard for one in each), key=lambda one: one.at)
    if len(answers) < 2 or not all(heard):
        raise RuntimeError(f"{case.mode}, {case.name}: too short to measure")
    first, last = answers[0], answers[-1]
    own = heard[0]
    rule = staleness_rule(config)
    weights = [rule.judge(one.lag).factor for one in heard[-1]]
    return Session(
        mode=case.mode,
        case=case.name,
        updates_per_s=(last.version - first.version) / (last.at - first.at),
        work_per_s=len(own) / (own[-1].at - began),
        outcomes=dict(Counter(one.outcome for one in heard[-1])),
        counted=sum(weights) / len(weights),
    )


@contextmanager
def _runs(work_s: float) -> Iterator[Mapping[tuple[Mode, int], Servers]]:
    """A parameter server for each mode and number of learners, all at once: they take turns in a repeat."""
    with ExitStack() as stack:
        runs: dict[tuple[Mode, int], Servers] = {}
        for mode, learners in {(case.mode, case.learners): None for case in CASES}:
            run = stack.enter_context(serving(make_config(mode, learners, work_s)))
            client = PublishClient(run.chain[0].address, run.settings.handshake("learner-0"))
            start = LAYOUT.split(np.zeros(LAYOUT.size, np.float32))
            client.publish(None, start, None, TrainingReport(0, 0, 0, 0, None, None, {}), [])
            client.close()
            runs[mode, learners] = run
        yield runs


def measure_rounds(*, work_s: float, seconds: float, repeats: int) -> RoundsResult:
    """All cases in turns, ``repeats`` times."""
    result = RoundsResult(1e3 * work_s)
    with _runs(work_s) as runs:
        for _ in range(repeats):
            found = {}
            for case in CASES:
                run = runs[case.mode, case.learners]
                found[case] = measure(case, run, work_s, seconds)
                result.sessions.append(found[case])
            for mode in MODES:
                two, slowed = found[Case(mode, 2, False)], found[Case(mode, 3, True)]
                updates = slowed.updates_per_s / two.updates_per_s
                result.updates_kept.setdefault(mode, []).append(updates)
                result.work_kept.setdefault(mode, []).append(slowed.work_per_s / two.work_per_s)
    return result


def show_rounds(result: RoundsResult) -> None:
    """Print medians, smallest and largest."""
    print(f"rounds: work of {result.work_ms:.0f} ms, {LAYOUT.size * 4 / 1e6:.1f} MB a contribution")
    print(
        f"{'mode':10} {'learners':14} {'updates/s':>24} {'work/s of an unslowed':>24} "
        f"{'last learner: counted':>22}  outcomes"
    )
    for case in CASES:
        found = [one for one in result.sessions if (one.mode, one.case) == (case.mode, case.name)]
        outcomes = sum((Counter(one.outcomes) for one in found), Counter[str]())
        print(
            f"{case.mode:10} {case.name:14} {spread([one.updates_per_s for one in found]):>24} "
            f"{spread([one.work_per_s for one in found]):>24} "
            f"{median(one.counted for one in found):22.0%}  {dict(outcomes)}"
        )
    for mode, shares in result.updates_kept.items():
        print(
            f"{mode}: beside a slowed one 2 learners make {spread(shares)} of the updates/s, and do "
            f"{spread(result.work_kept[mode])} of the work/s"
        )


def spread(values: Sequence[float]) -> str:
    """Median, with the smallest and largest."""
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
