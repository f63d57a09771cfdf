"""Both ends of the fragment stream for tests: small fragments, and a learner's door on a real port."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.clients.fragments import FragmentSender
from headrace.config.sections import Config
from headrace.rpc.fragments import SERVICE, TrajectoryServicer
from headrace.rpc.handshake import Handshake
from headrace.rpc.server import RunningServer, serve
from headrace.types import (
    ACTION,
    BEHAVIOR_LOG_PROB,
    BOOTSTRAP_OBSERVATION,
    BOOTSTRAP_VALUE,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALUE,
    Fragment,
    FragmentId,
    LearnerAccount,
    PolicyVersion,
    SamplerIdentity,
)
from services.learner.intake import Intake

T, B = 8, 4
DIGEST = "0123456789abcdef"
SAMPLER = SamplerIdentity("sampler-0", 1)
OWN = Handshake(run_id="run-1", config_digest=DIGEST, peer="learner-0")
WAIT_S = 20.0


def make_fragment(
    sequence: int, *, sampler: SamplerIdentity = SAMPLER, version: int = 0, width: int = 3, **changes: Any
) -> Fragment:
    """A fragment whose observations all hold its sequence number."""
    columns = {
        OBSERVATION: np.full((T, B, width), sequence, np.float32),
        ACTION: np.zeros((T, B), np.int64),
        REWARD: np.ones((T, B), np.float32),
        TERMINATED: np.zeros((T, B), np.bool_),
        TRUNCATED: np.zeros((T, B), np.bool_),
        BEHAVIOR_LOG_PROB: np.zeros((T, B), np.float32),
        VALUE: np.zeros((T, B), np.float32),
        BOOTSTRAP_OBSERVATION: np.zeros((B, width), np.float32),
        BOOTSTRAP_VALUE: np.zeros(B, np.float32),
    }
    fields: dict[str, Any] = {
        "id": FragmentId(sampler, sequence),
        "policy_version": PolicyVersion(1, version),
        "config_digest": DIGEST,
        "columns": columns,
        "num_transitions": T * B,
        "produced_through": T * B * (sequence + 1),
    }
    return Fragment(**{**fields, **changes})


FRAGMENT_BYTES = make_fragment(0).nbytes


def make_config(*, capacity_bytes: int = 2**20, paced: bool = False, lag: int = 10**9) -> Config:
    """A run whose updates take two of our fragments."""
    return Config.model_validate(
        {
            "environment": {"id": "CartPole-v1", "lanes": B},
            "sampler": {"fragment_length": T},
            "algorithm": {"name": "a2c", "batch_steps": 2 * T * B},
            "stream": {"capacity_bytes": capacity_bytes},
            "sync": {"lag_control": "pace" if paced else "drop", "max_policy_lag": lag},
        }
    )


class Learner:
    """An intake behind a real server, and a trainer that does nothing but count."""

    def __init__(
        self,
        config: Config,
        *,
        port: int = 0,
        accounts: list[LearnerAccount] | None = None,
        version: int = 0,
        own: Handshake = OWN,
        max_streams: int = 8,
        handshake_s: float = 10.0,
    ) -> None:
        self.intake = Intake(config, resume_grace_s=0.5)
        self.version = PolicyVersion(1, version)
        self.accounts = accounts or []
        self.trained: list[Fragment] = []
        self.intake.restore(self.accounts, self.version)
        servicer = TrajectoryServicer(
            self.intake,
            own,
            max_fragment_bytes=2**24,
            check=lambda fragment: None,
            handshake_s=handshake_s,
        )
        self.server: RunningServer = serve(
            address=f"127.0.0.1:{port}",
            handlers=[servicer.handler()],
            service_names=[SERVICE],
            max_streams=max_streams,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)

    def start_training(self) -> None:
        """Begin to consume."""
        self._thread.start()

    def _train(self) -> None:
        while not self._stop.is_set():
            taken = self.intake.next_batch(timeout_s=0.05)
            if taken is None:
                continue
            accounts = self.intake.accounts(including=taken)
            version = PolicyVersion(1, self.version.number + 1)
            # From here on the version is published with its accounts, as one.
            self.accounts, self.version = accounts, version
            self.trained += taken.fragments
            self.intake.commit(taken, version)

    def close(self, grace_s: float = 0.0) -> None:
        """Stop as a killed learner does: what is not in ``accounts`` is gone."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(WAIT_S)
        self.server.stop(grace_s)
        self.intake.stop()


def make_sender(address: str, **changes: Any) -> FragmentSender:
    """A started sender of :func:`make_fragment`'s fragments."""
    arguments: dict[str, Any] = {
        "handshake": Handshake(run_id="run-1", config_digest=DIGEST, peer="sampler-0/1"),
        "identity": SAMPLER,
        "fragment_bytes": FRAGMENT_BYTES,
        "fragment_transitions": T * B,
        "rng": np.random.default_rng(0),
    }
    sender = FragmentSender(address, **{**arguments, **changes})
    sender.start()
    return sender


def produce(
    sender: FragmentSender, start: int, stop: int, make: Callable[[int], Fragment] = make_fragment
) -> None:
    """Send the fragments ``start`` to ``stop - 1``, each as soon as there is leave for it."""
    for sequence in range(start, stop):
        ticket = sender.acquire(acting_version=lambda: 10**9, timeout_s=WAIT_S)
        assert ticket is not None, f"no leave for fragment {sequence}: {sender.wait_reason} {sender.fatal}"
        sender.send(make(sequence))
