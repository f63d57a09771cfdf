"""Samplers, a learner and the store of versions in one thread, every delay and death drawn from one seed.

The real intake and the real outbox, with links that deliver in order but whenever the dice say. What
must never happen is checked where it would happen: bytes beyond the capacity, a fragment trained
twice, a lag beyond the bound, something forgotten by a sampler that no version accounts for.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from headrace.clients.outbox import Outbox, Ticket
from headrace.config.sections import Config
from headrace.errors import UnavailableError
from headrace.flow.ledger import Ledger, SamplerAccount, build_ledger
from headrace.flow.messages import Closed, Grant, Opened, Refused, Settled, ToSampler
from headrace.types import (
    REWARD,
    Fragment,
    FragmentId,
    LearnerAccount,
    PolicyVersion,
    SamplerIdentity,
)
from services.learner.intake import Intake
from services.learner.stock import TakenBatch

LANES, LENGTH = 2, 4
TRANSITIONS = LANES * LENGTH
UNIT_BYTES = 8192


def make_config(*, batch_fragments: int = 2, capacity_fragments: int = 64, **fields: object) -> Config:
    """Fragments of 2 x 4 transitions and at most 8 KiB; ``fields`` are ``section__field`` values."""
    raw: dict[str, dict[str, object]] = {
        "environment": {"id": "CartPole-v1", "lanes": LANES},
        "sampler": {"fragment_length": LENGTH},
        "algorithm": {"name": "ppo", "batch_steps": batch_fragments * TRANSITIONS},
        "stream": {"capacity_bytes": capacity_fragments * UNIT_BYTES},
        "sync": {},
    }
    for name, value in fields.items():
        section, _, key = name.partition("__")
        raw[section][key] = value
    return Config.model_validate(raw)


def make_fragment(
    sampler: SamplerIdentity,
    sequence: int,
    version: PolicyVersion,
    *,
    transitions: int = TRANSITIONS,
    produced_through: int | None = None,
    nbytes: int = UNIT_BYTES,
    steps_per_s: float = 0.0,
) -> Fragment:
    """A fragment of ``nbytes`` bytes whose content does not matter."""
    return Fragment(
        id=FragmentId(sampler, sequence),
        policy_version=version,
        config_digest="",
        columns={REWARD: np.broadcast_to(np.float32(0), (1, nbytes // 4))},
        num_transitions=transitions,
        produced_through=(sequence + 1) * transitions if produced_through is None else produced_through,
        steps_per_s=steps_per_s,
    )


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Store:
    """What the parameter server keeps: the newest version and the accounts published with it."""

    version: PolicyVersion = field(default_factory=lambda: PolicyVersion(1, 0))
    accounts: list[LearnerAccount] = field(default_factory=list)
    trained: dict[FragmentId, int] = field(default_factory=dict)  # -> its lag
    batch_sizes: list[int] = field(default_factory=list)

    def publish(self, batch: TakenBatch, accounts: list[LearnerAccount]) -> PolicyVersion:
        for fragment, said in zip(batch.fragments, batch.lags, strict=True):
            lag = self.version.number - fragment.policy_version.number
            assert said == max(0, lag)
            assert fragment.id not in self.trained, f"{fragment.id} is trained twice"
            self.trained[fragment.id] = lag
        self.batch_sizes.append(len(batch.fragments))
        self.version = PolicyVersion(self.version.epoch, self.version.number + 1)
        self.accounts = accounts
        return self.version


class SimulatedSampler:
    """One life of a sampler: the real outbox, fragments that take a number of turns."""

    def __init__(self, identity: SamplerIdentity, turns_per_fragment: int, rng: random.Random) -> None:
        self.identity = identity
        self.rng = rng
        self.turns = turns_per_fragment
        self.outbox = Outbox(UNIT_BYTES)
        self.acting: PolicyVersion | None = None
        self.in_making: tuple[Ticket, PolicyVersion, int] | None = None
        self.produced = self.sealed = self.settled = 0
        self.sizes: dict[int, int] = {}
        self.token: int | None = None
        self.down: deque[ToSampler | Opened] = deque()
        self.up: deque[Fragment] = deque()

    def account(self, *, drained: bool = False) -> SamplerAccount:
        through = self.outbox.settled_through
        return SamplerAccount(
            self.identity,
            produced=self.produced,
            sealed=self.sealed,
            open=self.produced - self.sealed,
            last_sequence=self.outbox.last_sequence,
            settled_through=through,
            settled=sum(size for sequence, size in self.sizes.items() if sequence <= through),
            state="drained" if drained else "running",
        )

    def act(self, *, start: bool) -> None:
        if self.in_making is None:
            version = -1 if self.acting is None else self.acting.number
            if start and self.acting is not None and not self.outbox.blocked_by(version):
                ticket = self.outbox.take_ticket()
                steps = min(ticket.steps or LENGTH, LENGTH)
                self.in_making = (ticket, self.acting, -(-self.turns * steps // LENGTH))
            return
        ticket, version, turns = self.in_making
        if turns > 1:
            self.in_making = (ticket, version, turns - 1)
            return
        self.in_making = None
        steps = min(ticket.steps or LENGTH, LENGTH)
        size = self.rng.randint(1, steps * LANES)
        self.produced += size
        self.sealed += size
        sequence = self.outbox.last_sequence + 1
        self.sizes[sequence] = size
        self.outbox.add(
            make_fragment(
                self.identity,
                sequence,
                version,
                transitions=size,
                produced_through=self.sealed,
                nbytes=4 * self.rng.randint(1, UNIT_BYTES // 4),
                steps_per_s=LENGTH / self.turns,
            )
        )

    def hear(self) -> None:
        match self.down.popleft():
            case Opened(settled_through=through, paced=paced):
                self.outbox.opened(through, paced)
            case Grant() as grant:
                self.outbox.grant(grant)
            case Settled(through):
                self.outbox.settle(through)
            case Refused():
                pass
            case Closed():
                self.cut()

    def cut(self) -> None:
        self.token = None
        self.down.clear()
        self.up.clear()
        self.outbox.lost()


class Pipe:
    """The whole simulation. Each :meth:`turn` does one small thing somewhere."""

    def __init__(
        self,
        config: Config,
        *,
        speeds: list[int],
        seed: int,
        slow_push: float = 0.3,
        compute_turns: int = 3,
        prefetch: int = 1,
    ) -> None:
        self.config = config
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.store = Store()
        self.slow_push = slow_push
        self.compute_turns = compute_turns
        self.prefetch = prefetch
        self.events: Counter[str] = Counter()
        self.samplers: list[SimulatedSampler] = [
            SimulatedSampler(SamplerIdentity(f"sampler-{i}", 0), speed, random.Random(seed + i))
            for i, speed in enumerate(speeds)
        ]
        self.graves: list[SimulatedSampler] = []
        self.batches: deque[TakenBatch] = deque()
        self.computing = 0
        self.published: PolicyVersion | None = None  # of the oldest batch, not committed yet
        self.silent: set[str] = set()  # samplers that have hung: their links stand, they do nothing
        self.intake = self._new_intake()

    def _new_intake(self) -> Intake:
        intake = Intake(self.config, clock=self.clock, on_event=self._hear_event)
        intake.restore(self.store.accounts, self.store.version)
        return intake

    def _hear_event(self, kind: str, **fields: object) -> None:
        self.events[kind] += 1

    # What may happen in a turn.

    def turn(self, *, start: bool = True, connect: bool = True) -> None:
        self.clock.now += 0.01
        sampler = self.rng.choice(self.samplers)
        action: Callable[[], None] = self.rng.choice(
            [
                lambda: self.connect(sampler) if connect else None,
                lambda: None if self._hung(sampler) else sampler.act(start=start),
                lambda: self.send(sampler),
                lambda: self.arrive(sampler),
                lambda: self.arrive(sampler),
                lambda: sampler.hear() if sampler.down and not self._hung(sampler) else None,
                lambda: sampler.hear() if sampler.down and not self._hung(sampler) else None,
                lambda: self.push(sampler),
                self.train,
            ]
        )
        action()
        self.check()

    def _hung(self, sampler: SimulatedSampler) -> bool:
        return sampler.identity.sampler_id in self.silent

    def connect(self, sampler: SimulatedSampler) -> None:
        if sampler.token is not None or self._hung(sampler):
            return
        inbox: deque[ToSampler | Opened] = deque()
        try:
            opened = self.intake.open(
                sampler.identity, UNIT_BYTES, TRANSITIONS, inbox.append,
                next_sequence=sampler.outbox.next_sequence,
            )  # fmt: skip
        except UnavailableError:
            return
        inbox.appendleft(opened)
        sampler.token, sampler.down = opened.token, inbox

    def send(self, sampler: SimulatedSampler) -> None:
        if sampler.token is not None and not self._hung(sampler):
            sampler.up.extend(sampler.outbox.take_sendable(UNIT_BYTES * 2))

    def arrive(self, sampler: SimulatedSampler) -> None:
        if sampler.token is not None and sampler.up:
            fragment = sampler.up.popleft()
            self.intake.offer(sampler.token, fragment, fragment.nbytes)

    def push(self, sampler: SimulatedSampler) -> None:
        if self.rng.random() < self.slow_push:
            sampler.acting = self.store.version

    def train(self) -> None:
        if len(self.batches) < 1 + self.prefetch:
            batch = self.intake.next_batch(timeout_s=0.0)
            if batch is not None:
                self.batches.append(batch)
        if not self.batches:
            return
        if self.computing < self.compute_turns:
            self.computing += 1
            return
        batch = self.batches[0]
        if self.published is None:
            self.published = self.store.publish(batch, self.intake.accounts(including=batch))
            return
        version, self.published, self.computing = self.published, None, 0
        self.batches.popleft()
        self.intake.commit(batch, version)

    def cut(self, sampler: SimulatedSampler) -> None:
        token = sampler.token
        sampler.cut()
        if token is not None:
            self.intake.close(token)

    def kill_sampler(self, sampler: SimulatedSampler) -> None:
        self.cut(sampler)
        self.graves.append(sampler)
        identity = SamplerIdentity(sampler.identity.sampler_id, sampler.identity.incarnation + 1)
        if sampler.in_making is not None:
            sampler.produced += 1  # something was stepped and never sealed
        self.samplers[self.samplers.index(sampler)] = SimulatedSampler(identity, sampler.turns, sampler.rng)

    def kill_learner(self, *, after_publish: bool = False) -> None:
        if after_publish and self.batches and self.published is None:
            self.store.publish(self.batches[0], self.intake.accounts(including=self.batches[0]))
        self.batches.clear()
        self.computing, self.published = 0, None
        for sampler in self.samplers:
            sampler.cut()
        self.intake = self._new_intake()

    # What must hold.

    def check(self) -> None:
        pool = self.intake._stock.credits
        assert pool.buffered + pool.outstanding <= pool.capacity
        assert pool.buffered >= 0
        assert pool.outstanding >= 0
        assert (
            sum(held.nbytes for held in self.intake._stock.buffer._held)
            + sum(held.nbytes for batch in self.batches for held in batch.held)
            == pool.buffered
        )

    def ledger(self, *, run_over: bool) -> Ledger:
        accounts = [sampler.account(drained=run_over) for sampler in self.samplers]
        accounts += [sampler.account() for sampler in self.graves]
        return build_ledger(accounts, self.store.accounts, run_over=run_over)
