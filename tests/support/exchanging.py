"""Learners in this process that hand real work in to the rounds of a parameter server on a real channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paramserving import make_handshake
from prometheus_client import CollectorRegistry

from headrace.clients.parameters import PublishClient
from headrace.clients.rounds import RoundClient
from headrace.sync.layout import Layout
from headrace.types import PolicyVersion
from services.learner.exchanging import Exchanged, Learned
from services.learner.metrics import LearnerMetrics
from services.learner.round_exchange import Connections, RoundExchange, SharingTrainable
from services.paramserver.config import Settings


def make_learned(losses: dict[str, float] | None = None, *, samples: int = 64, **fields: Any) -> Learned:
    """What a learner tells of ``samples`` transitions that it has learned from once."""
    values: dict[str, Any] = {
        "losses": losses or {},
        "lags": (0,),
        "env_steps": samples,
        "samples": samples,
        "weight": samples,
        "episodes": 0,
    }
    return Learned(**(values | fields))


class RoundLearner:
    """An algorithm with its exchange, recovered to the newest version."""

    def __init__(
        self, settings: Settings, address: str, algorithm: SharingTrainable, *, index: int = 0
    ) -> None:
        name = f"learner-{index}"
        handshake = make_handshake(settings, name)
        self.algorithm = algorithm
        self.events: list[str] = []
        self._publish = PublishClient(address, handshake)

        def join(layout: Layout, have: PolicyVersion) -> RoundClient:
            return RoundClient(
                address,
                handshake,
                learner_id=name,
                incarnation=1,
                layout=layout,
                have=have,
                vector_type=settings.config.sync.transport_dtype,
            )

        self.exchange = RoundExchange(
            settings.config,
            index,
            algorithm,
            Connections(self._publish, join),
            LearnerMetrics(CollectorRegistry()),
            stopping=lambda: False,
            on_event=lambda kind, **_fields: self.events.append(kind),
        )
        self.accounts = self.exchange.recover()

    def hand_in(self, work: Callable[[], Learned]) -> Exchanged:
        exchanged = self.exchange.exchange(work)
        assert exchanged is not None, "nobody has told it to stop"
        return exchanged

    def close(self) -> None:
        self.exchange.close()
        self._publish.close()
