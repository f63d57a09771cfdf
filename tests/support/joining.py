"""Learners as the parameter server sees them: they join its rounds and bring what a test makes up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from paramserving import PATIENCE_S, eventually, make_handshake, make_report, make_settings, serving

from headrace.clients.parameters import Fetched, PublishClient
from headrace.clients.rounds import RoundClient
from headrace.sync.aggregation import FlatArray
from headrace.sync.contribution import Contribution, RoundResult
from headrace.sync.layout import Layout
from headrace.types import Array, PolicyVersion
from services.paramserver.assembly import Paramserver
from services.paramserver.config import Settings

LAYOUT = Layout(("policy/weight", "policy/bias"), ((2, 3), (2,)))
START = np.arange(8, dtype=np.float32) / 8
PARAMETERS: dict[str, Array] = {
    **LAYOUT.split(START),
    "exploration/epsilon": np.array(1.0, np.float32),
    "normalizer//count": np.array(0.0),
    "normalizer//mean": np.zeros(3),
    "normalizer//m2": np.zeros(3),
}
FIRST = PolicyVersion(1, 0)


def round_settings(run_dir: Path, *, learners: int = 2, algorithm: str = "ppo", **sync: Any) -> Settings:
    """A run whose learners meet in rounds, which nothing but contributions closes."""
    return make_settings(
        run_dir,
        algorithm={"name": algorithm},
        learner={"count": learners},
        sampler={"count": learners},
        sync={
            "exchange": "gradients" if algorithm == "a2c" else "changes",
            "straggler_deadline_s": None,
            **sync,
        },
    )


class Member:
    """One learner, with a stream of its own."""

    def __init__(
        self,
        settings: Settings,
        address: str,
        index: int = 0,
        *,
        have: PolicyVersion = FIRST,
        incarnation: int = 1,
        **arguments: Any,
    ) -> None:
        self.name = f"learner-{index}"
        values: dict[str, Any] = {
            "learner_id": self.name,
            "incarnation": incarnation,
            "layout": LAYOUT,
            "have": have,
        }
        self.client = RoundClient(address, make_handshake(settings, self.name), **(values | arguments))
        self.client.start()
        self.version = have
        self._sequence = 0

    def close(self) -> None:
        self.client.close()

    def join(self) -> RoundResult:
        welcome = self.client.join(timeout_s=PATIENCE_S)
        assert welcome is not None, "it was not let in"
        self.version = welcome.version
        return welcome

    def contribution(self, vector: FlatArray, **fields: Any) -> Contribution:
        self._sequence += 1
        values: dict[str, Any] = {"base": self.version, "kind": "values", "num_samples": 1}
        return Contribution(sequence=self._sequence, vector=vector, **(values | fields))

    def bring(self, contribution: Contribution) -> RoundResult:
        result = self.client.exchange(contribution, timeout_s=PATIENCE_S)
        assert result is not None, "there was no answer"
        self.version = result.version
        return result


class Together:
    """A parameter server with one version, and members that contribute at the same time."""

    def __init__(self, settings: Settings, server: Paramserver, pool: ThreadPoolExecutor) -> None:
        self.settings = settings
        self.server = server
        self._pool = pool
        self.publisher = PublishClient(server.server.address, make_handshake(settings))
        self.members: list[Member] = []

    @property
    def address(self) -> str:
        return self.server.server.address

    def join(self, index: int = 0, *, address: str | None = None, **arguments: Any) -> Member:
        member = self.connect(index, address=address, **arguments)
        member.join()
        return member

    def connect(self, index: int = 0, *, address: str | None = None, **arguments: Any) -> Member:
        member = Member(self.settings, address or self.address, index, **arguments)
        self.members.append(member)
        return member

    def begin(self, member: Member, contribution: Contribution) -> Future[RoundResult]:
        """Bring a contribution; returns once the server has it."""
        before = self.metric("gradient_lag_count")
        answer = self._pool.submit(member.bring, contribution)
        eventually(lambda: self.metric("gradient_lag_count") > before, f"{member.name} has contributed")
        return answer

    def newest(self) -> Fetched:
        fetched = self.publisher.fetch(with_training=True, timeout_s=PATIENCE_S)
        assert fetched is not None
        return fetched

    def metric(self, name: str, **labels: str) -> float:
        registry = self.server.core._metrics.registry
        return registry.get_sample_value(f"headrace_paramserver_{name}", labels) or 0.0


def values_of(fetched: Fetched) -> FlatArray:
    """The flat vector of a version."""
    return LAYOUT.join(fetched.snapshot.parameters)


@contextmanager
def together(settings: Settings, listen: str = "127.0.0.1:0", *, publish: bool = True) -> Iterator[Together]:
    """Serve, with the first version published unless there is one already."""
    with serving(settings, listen) as server, ThreadPoolExecutor(8) as pool:
        run = Together(settings, server, pool)
        try:
            if publish:
                run.publisher.publish(None, PARAMETERS, None, make_report(0), (), timeout_s=PATIENCE_S)
            yield run
        finally:
            for member in run.members:
                member.client.close()
            run.publisher.close()
