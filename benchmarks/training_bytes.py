"""Bytes per update and learner against theory, and how long the aggregation of one round takes.

Learners are threads of this process with the services' own exchanges; the parameter server is a process of
its own. Bytes are those of the kernel's counters, so that framing and everything else is in them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from prometheus_client import CollectorRegistry

from benchmarks.parameter_processes import DEADLINE_S, Servers, serving
from benchmarks.update import make_columns
from benchmarks.wire_bytes import Traffic, traffic
from headrace.checkpoint import Blob, VersionRecord
from headrace.clients.parameters import PublishClient
from headrace.clients.rounds import RoundClient
from headrace.config.choices import group_size
from headrace.config.sections import Config
from headrace.envs.factory import probe
from headrace.rl.algorithm import Algorithm, make_algorithm
from headrace.rl.all_reduce import AllReduce
from headrace.rpc.server import split_address
from headrace.sync.contribution import Contribution, VectorKind
from headrace.sync.layout import Layout
from headrace.types import Batch, PolicyVersion, TrainingReport
from services.learner.exchanging import Learned
from services.learner.group_exchange import GroupExchange
from services.learner.metrics import LearnerMetrics
from services.learner.round_exchange import Connections, RoundExchange
from services.paramserver.rounds.model import Part, SharedModel

HOST = "127.0.0.1"
STEPS, LANES = 8, 16
AGGREGATED = 1_000_000  # parameters
AGGREGATED_LEARNERS = 4
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Way:
    """How learners work together. ``up``: models that each brings to a round; ``reduced``: gradient steps of
    an update that are averaged among them instead.
    """

    name: str
    algorithm: dict[str, Any]
    sync: dict[str, Any]
    up: float
    reduced: int = 0


_ONE_STEP: dict[str, Any] = {"name": "a2c"}
_FOUR_STEPS: dict[str, Any] = {"name": "ppo", "epochs": 4, "minibatch_size": STEPS * LANES}
WAYS = (
    Way("sync, gradients", _ONE_STEP, {}, 1.0),
    Way("sync, gradients, 16 bits", _ONE_STEP, {"transport_dtype": "float16"}, 0.5),
    Way("sync, changes", _FOUR_STEPS, {}, 1.0),
    Way("sync, changes, 16 bits", _FOUR_STEPS, {"transport_dtype": "float16"}, 0.5),
    Way("all_reduce, 1 gradient step", _ONE_STEP, {"mode": "all_reduce"}, 0.0, 1),
    Way("all_reduce, 4 gradient steps", _FOUR_STEPS, {"mode": "all_reduce"}, 0.0, 4),
)


@dataclass(frozen=True, slots=True)
class Bytes:
    """Per update and learner, in sizes of the model (float32).

    ``up``, ``down``: to and from the parameter server; ``peers``: sent to other learners. ``theory``: what
    they come to together with the vectors alone.
    """

    way: str
    learners: int
    megabytes: float
    up: float
    down: float
    peers: float
    theory: float


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Milliseconds of one round's aggregation."""

    kind: str
    parameters: int
    learners: int
    p50_ms: float
    least_ms: float
    p95_ms: float


def make_config(way: Way, learners: int, hidden: int) -> Config:
    """A run of ``learners`` on CartPole's spaces with two towers of two layers of ``hidden``."""
    return Config.model_validate(
        {
            "environment": {"id": "CartPole-v1", "lanes": LANES},
            "policy": {"hidden": [hidden, hidden]},
            "algorithm": {"batch_steps": STEPS * LANES, **way.algorithm},
            "run": {"stop": {"updates": 10**9}},
            "learner": {"count": learners},
            "sampler": {"count": learners, "fragment_length": STEPS},
            "sync": way.sync,
            "paramserver": {"checkpoint_every": 10**9},
        }
    )


class Learner(threading.Thread):
    """A learner as its service puts it together, only without samplers: it learns from one batch for ever.

    ``turns`` updates at a time, and ``together`` is met before and after each of them.
    """

    def __init__(self, index: int, run: Servers, turns: Sequence[int], together: threading.Barrier) -> None:
        super().__init__(name=f"learner-{index}", daemon=True)
        self._index = index
        self._run_of = run
        self._turns = turns
        self._together = together
        self.parameters = 0

    def run(self) -> None:
        """Learn, meet, and again; whatever goes wrong, nobody is left waiting."""
        try:
            with ExitStack() as closing:
                self._work(closing)
        except BaseException:
            self._together.abort()
            raise

    def _work(self, closing: ExitStack) -> None:
        config = self._run_of.settings.config
        algorithm = make_algorithm(config, probe(config.environment))
        self.parameters = algorithm.shared.layout.size
        exchange = self._exchange(algorithm, closing)
        exchange.recover()
        batch = Batch(make_columns(STEPS, LANES), STEPS * LANES)

        def learn() -> Learned:
            losses = algorithm.update(batch, progress=0.0)
            steps = batch.num_transitions
            return Learned(losses, lags=(0,), env_steps=steps, samples=steps, weight=steps, episodes=0)

        for turn in self._turns:
            for _ in range(turn):
                exchange.exchange(learn)
            self._together.wait(DEADLINE_S)
            self._together.wait(DEADLINE_S)

    def _exchange(self, algorithm: Algorithm, closing: ExitStack) -> RoundExchange:
        run, config = self._run_of, self._run_of.settings.config
        handshake, address = run.settings.handshake(self.name), run.chain[0].address
        publish = PublishClient(address, handshake)
        closing.callback(publish.close)
        peers: AllReduce | None = None
        if group_size(config) is not None:
            peers = AllReduce(HOST, device="cpu", timeout_s=config.sync.collective_timeout_s)

        def join(layout: Layout, have: PolicyVersion) -> RoundClient:
            return RoundClient(
                address,
                handshake,
                learner_id=self.name,
                incarnation=time.monotonic_ns(),
                layout=layout,
                have=have,
                vector_type=config.sync.transport_dtype,
                rendezvous="" if peers is None else peers.rendezvous,
            )

        exchange = (RoundExchange if peers is None else partial(GroupExchange, peers))(
            config,
            self._index,
            algorithm,
            Connections(publish, join),
            LearnerMetrics(CollectorRegistry()),
            stopping=lambda: False,
            on_event=lambda _kind, **_fields: None,
        )
        closing.callback(exchange.close)
        return exchange


def measure_way(way: Way, learners: int, hidden: int, updates: int) -> Bytes:
    """Bytes of ``updates`` updates, after those with which everybody comes together."""
    together = threading.Barrier(learners + 1)
    with serving(make_config(way, learners, hidden)) as run:
        port = split_address(run.chain[0].address)[1]
        threads = [Learner(index, run, (_WARM_UP, updates), together) for index in range(learners)]
        for thread in threads:
            thread.start()
        marks: list[Traffic] = []
        for _ in range(2):
            together.wait(DEADLINE_S)
            marks.append(traffic(port))
            together.wait(DEADLINE_S)
        for thread in threads:
            thread.join(DEADLINE_S)
    carried = marks[1] - marks[0]
    model = 4 * threads[0].parameters
    each = updates * learners * model
    reduced = way.reduced * 2 * (learners - 1) / learners
    # In a group the first member alone brings the vector, and nobody is sent what all hold already.
    rounds = 1 / learners if way.reduced else way.up + 1.0
    return Bytes(
        way=way.name,
        learners=learners,
        megabytes=model / 1e6,
        up=carried.peer.sent / each,
        down=carried.peer.received / each,
        peers=carried.others.sent / each,
        theory=reduced + rounds,
    )


def measure_aggregation(kind: VectorKind, repeats: int) -> Aggregation:
    """``SharedModel.step`` alone, on full contributions of ``AGGREGATED_LEARNERS`` learners."""
    config = Config.model_validate(
        {
            "environment": {"id": "CartPole-v1"},
            "algorithm": _ONE_STEP if kind == "gradient" else _FOUR_STEPS,
            "learner": {"count": AGGREGATED_LEARNERS},
            "sampler": {"count": AGGREGATED_LEARNERS},
            "run": {"stop": {"updates": 1}},
        }
    )
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    layout, version = Layout(("weight",), ((AGGREGATED,),)), PolicyVersion(1, 1)
    start = Blob.encode({"weight": rng.standard_normal(AGGREGATED).astype(np.float32)})
    report = TrainingReport(0, 0, 0, 0, None, None, {})
    model = SharedModel(config, layout, VersionRecord(version, "run", "", "{}", report, (), start, None))
    times = []
    for sequence in range(_WARM_UP + repeats):
        vectors = [rng.standard_normal(AGGREGATED).astype(np.float32) for _ in range(AGGREGATED_LEARNERS)]
        parts = [
            Part(Contribution(sequence, version, kind, vector, 256, 1e-3), 1.0, model.values, 256)
            for vector in vectors
        ]
        began = time.perf_counter()
        model.step(parts)
        times.append(1e3 * (time.perf_counter() - began))
    times = times[_WARM_UP:]
    return Aggregation(
        kind=kind,
        parameters=AGGREGATED,
        learners=AGGREGATED_LEARNERS,
        p50_ms=median(times),
        least_ms=min(times),
        p95_ms=float(np.percentile(times, 95)),
    )


def measure_bytes(
    *,
    learners: Sequence[int],
    hidden: Sequence[int],
    updates: int,
    repeats: int,
    ways: Sequence[Way] = WAYS,
) -> tuple[list[Bytes], list[Aggregation]]:
    """Every way with so many learners and networks so large, and the aggregation of every kind."""
    kinds: tuple[VectorKind, ...] = ("gradient", "values", "change")
    aggregations = [measure_aggregation(kind, repeats) for kind in kinds]
    found = [
        measure_way(way, count, width, updates) for width in hidden for way in ways for count in learners
    ]
    return found, aggregations


def show_bytes(found: Sequence[Bytes], aggregations: Sequence[Aggregation]) -> None:
    """Print both tables."""
    print(
        f"bytes: per update and learner, in sizes of the model\n{'way':30} {'learners':>8} {'model MB':>9} "
        f"{'up':>6} {'down':>6} {'peers':>6} {'sum':>6} {'theory':>7}"
    )
    for one in found:
        print(
            f"{one.way:30} {one.learners:8} {one.megabytes:9.2f} {one.up:6.2f} {one.down:6.2f} "
            f"{one.peers:6.2f} {one.up + one.down + one.peers:6.2f} {one.theory:7.2f}"
        )
    for how in aggregations:
        print(
            f"aggregation of {how.learners} x {how.parameters:,} ({how.kind}): {how.p50_ms:.2f} ms "
            f"(least {how.least_ms:.2f}, p95 {how.p95_ms:.2f})"
        )
