"""The law of the ledger: produced = trained + stored + dropped + in flight + lost, per sampler incarnation.

Two accounts are combined. The sampler's says what was stepped, discarded, and sealed into fragments;
the learner's, which travels with the newest published version, says what was trained or dropped. What
neither knows the end of is in flight while somebody may still deliver it, and after that it is lost
(or dropped with the reason ``run_ended``, if everybody left in order).

Read the learner's accounts first and the samplers' after: then the sampler's are the newer ones.

Where experience goes to replay, the second account is that of the cold tier: what it has received of an
incarnation is stored there until it is evicted or lost. What it never received is stored in the sampler's
hot tier as long as that lives, and was evicted from there or is lost with it. (A transition that both
tiers hold counts once, as the cold tier's.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from headrace.types import LearnerAccount, SamplerIdentity

MISSING = "missing"
"""Reason in a learner's account for what an earlier learner had settled and took with it when it died."""

RUN_ENDED = "run_ended"
LOST_WITH_SAMPLER = "sampler_killed"
LOST_WITH_LEARNER = "learner_killed"
NOT_SAVED = "not_saved"
"""Cause of what samplers were told is settled (and forgot) while no version that survived says so: the
run was taken up from an older version, or a learner had settled drops ahead of a version."""

SamplerState = Literal["running", "drained"]


@dataclass(frozen=True, slots=True)
class SamplerAccount:
    """What one sampler incarnation has done, in transitions: ``produced = discarded + sealed + open``.

    ``last_sequence`` is the highest sealed sequence, ``settled_through`` the highest one the learner
    has reported settled (-1: none), with ``settled`` transitions up to it. ``evicted_unsunk``: transitions
    that its hot tier of replay had to let go before the cold tier had them. ``state``: ``drained`` once it
    has left in order.
    """

    sampler: SamplerIdentity
    produced: int = 0
    discarded: Mapping[str, int] = field(default_factory=dict)
    sealed: int = 0
    open: int = 0
    last_sequence: int = -1
    settled_through: int = -1
    settled: int = 0
    evicted_unsunk: int = 0
    state: SamplerState = "running"


@dataclass(frozen=True, slots=True)
class ColdAccount:
    """What the cold tier has done with one incarnation, in transitions.

    ``received`` (each once, however often it was sent) ``= stored + evicted + lost``.
    """

    sampler: SamplerIdentity
    received: int = 0
    stored: int = 0
    evicted: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Where the transitions of one incarnation are. ``problems``: why the law does not hold, in words."""

    sampler: SamplerIdentity
    produced: int
    trained: int
    stored: int
    dropped: Mapping[str, int]
    in_flight: int
    lost: Mapping[str, int]
    evicted: int = 0
    problems: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All that is accounted for; equals ``produced`` where the law holds."""
        known = self.trained + self.stored + self.evicted + self.in_flight
        return known + sum(self.dropped.values()) + sum(self.lost.values())


@dataclass(frozen=True, slots=True)
class Ledger:
    """All incarnations. ``balanced`` only if every check of every row holds.

    ``sampled``: items drawn from replay, each as often as it was drawn. Not part of the law.
    """

    rows: tuple[LedgerRow, ...]
    sampled: int = 0

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that does not add up, with the incarnation in front."""
        return tuple(f"{row.sampler}: {problem}" for row in self.rows for problem in row.problems)

    @property
    def balanced(self) -> bool:
        """Whether every transition is accounted for."""
        return not self.problems

    def sums(self) -> dict[str, int]:
        """Transitions by state; ``produced`` is the sum of the others where the law holds."""
        return {
            "produced": sum(row.produced for row in self.rows),
            "trained": sum(row.trained for row in self.rows),
            "stored": sum(row.stored for row in self.rows),
            "evicted": sum(row.evicted for row in self.rows),
            "dropped": sum(sum(row.dropped.values()) for row in self.rows),
            "in_flight": sum(row.in_flight for row in self.rows),
            "lost": sum(sum(row.lost.values()) for row in self.rows),
        }

    def totals(self) -> dict[str, object]:
        """The ``ledger`` part of ``summary.json``."""
        dropped, lost = Counter[str](), Counter[str]()
        for row in self.rows:
            dropped.update(row.dropped)
            lost.update(row.lost)
        return {
            **self.sums(),
            "dropped": dict(sorted(dropped.items())),
            "lost": dict(sorted(lost.items())),
            "sampled": self.sampled,
            "balanced": self.balanced,
        }

    def to_json(self) -> dict[str, object]:
        """Totals, every row, and what does not add up."""
        return {
            **self.totals(),
            "problems": list(self.problems),
            "incarnations": [
                {
                    "sampler": row.sampler.sampler_id,
                    "incarnation": row.sampler.incarnation,
                    "produced": row.produced,
                    "trained": row.trained,
                    "stored": row.stored,
                    "evicted": row.evicted,
                    "dropped": dict(sorted(row.dropped.items())),
                    "in_flight": row.in_flight,
                    "lost": dict(sorted(row.lost.items())),
                }
                for row in self.rows
            ],
        }


def caught_up(account: SamplerAccount, done: int) -> SamplerAccount:
    """``account`` as it must be by now, if ``done`` transitions of it are settled or stored elsewhere.

    What a sampler reports over a network now and then is older than what has been received from it since.
    One that has left in order has said its last word: nothing is added to that.
    """
    if account.state == "drained" or done <= account.sealed:
        return account
    open_ = max(0, account.open - (done - account.sealed))
    return replace(account, sealed=done, open=open_, produced=done + open_ + sum(account.discarded.values()))


def build_ledger(
    samplers: Iterable[SamplerAccount],
    learner: Iterable[LearnerAccount],
    *,
    run_over: bool,
    gone: Collection[SamplerIdentity] = (),
    reported: Collection[SamplerIdentity] = (),
) -> Ledger:
    """Combine both sides. ``run_over``: all processes have ended, so nothing is in flight any more.

    ``gone``: incarnations that are known to have ended. ``reported``: those whose account came over a
    network and may be older than the learner's.
    """
    settled = {account.sampler: account for account in learner}
    made = {
        account.sampler: caught_up(account, _done(settled.get(account.sampler)))
        if account.sampler in reported
        else account
        for account in samplers
    }
    newest: dict[str, int] = {}
    for identity in (*made, *settled):
        newest[identity.sampler_id] = max(identity.incarnation, newest.get(identity.sampler_id, -1))
    return Ledger(
        tuple(
            _row(
                made.get(identity),
                settled.get(identity, LearnerAccount(identity)),
                superseded=identity.incarnation < newest[identity.sampler_id] or identity in gone,
                run_over=run_over,
            )
            for identity in sorted({*made, *settled})
        )
    )


def _done(settled: LearnerAccount | None) -> int:
    """Transitions whose end the learner knows."""
    return 0 if settled is None else settled.trained + sum(settled.dropped.values())


def _row(
    made: SamplerAccount | None, settled: LearnerAccount, *, superseded: bool, run_over: bool
) -> LedgerRow:
    done = _done(settled)
    dropped = Counter(settled.dropped)
    missing = dropped.pop(MISSING, 0)
    if made is None:
        return LedgerRow(
            sampler=settled.sampler,
            produced=done,
            trained=settled.trained,
            stored=0,
            dropped=dict(dropped),
            in_flight=0,
            lost={LOST_WITH_LEARNER: missing} if missing else {},
            problems=("the learner has settled fragments of it, but the sampler's own account is missing",),
        )
    lost: Counter[str] = Counter({LOST_WITH_LEARNER: missing})
    dropped.update(made.discarded)
    in_flight = 0
    remainder = max(0, made.sealed - done) + made.open
    if made.settled_through > settled.settled_through:
        # Whoever settled these, it is in no version that was saved, and the sampler has forgotten them.
        vanished = min(max(0, made.settled - done), remainder)
        lost[NOT_SAVED] += vanished
        remainder -= vanished
    if made.state == "drained" and run_over:
        dropped[RUN_ENDED] += remainder
    elif made.state == "running" and run_over:
        lost[LOST_WITH_SAMPLER] += remainder
    elif made.state == "running" and superseded:
        # Its open fragment died with it. What it had sealed may be at the learner and be trained yet.
        lost[LOST_WITH_SAMPLER] += min(made.open, remainder)
        in_flight = remainder - min(made.open, remainder)
    else:
        in_flight = remainder
    row = LedgerRow(
        sampler=made.sampler,
        produced=made.produced,
        trained=settled.trained,
        stored=0,
        dropped={reason: count for reason, count in dropped.items() if count},
        in_flight=in_flight,
        lost={cause: count for cause, count in lost.items() if count},
    )
    return _checked(row, made, settled, done)


def _checked(row: LedgerRow, made: SamplerAccount, settled: LearnerAccount, done: int) -> LedgerRow:
    problems = list(_sampler_problems(made))
    if done > made.sealed:
        problems.append(f"{done} transitions settled of {made.sealed} sealed: something was counted twice")
    counts = (
        made.produced, made.sealed, made.open, made.settled, settled.trained, row.in_flight,
        *made.discarded.values(), *settled.dropped.values(), *row.lost.values(),
    )  # fmt: skip
    if min(counts) < 0:
        problems.append("a count is negative")
    if row.total != row.produced:
        problems.append(f"produced {row.produced}, but {row.total} are accounted for")
    return replace(row, problems=tuple(problems))


def build_replay_ledger(
    samplers: Iterable[SamplerAccount],
    cold: Iterable[ColdAccount],
    *,
    run_over: bool,
    sampled: int = 0,
    gone: Collection[SamplerIdentity] = (),
    reported: Collection[SamplerIdentity] = (),
) -> Ledger:
    """The ledger of a run that learns from replay; the rest as in :func:`build_ledger`."""
    received = {account.sampler: account for account in cold}
    made = {
        account.sampler: caught_up(account, received[account.sampler].received)
        if account.sampler in reported and account.sampler in received
        else account
        for account in samplers
    }
    newest: dict[str, int] = {}
    for identity in (*made, *received):
        newest[identity.sampler_id] = max(identity.incarnation, newest.get(identity.sampler_id, -1))
    return Ledger(
        tuple(
            _replay_row(
                made.get(identity, SamplerAccount(identity)),
                received.get(identity, ColdAccount(identity)),
                alive=identity.incarnation == newest[identity.sampler_id]
                and not run_over
                and identity not in gone,
            )
            for identity in sorted({*made, *received})
        ),
        sampled,
    )


def _replay_row(made: SamplerAccount, cold: ColdAccount, *, alive: bool) -> LedgerRow:
    dropped = Counter(made.discarded)
    lost = Counter(cold.lost)
    only_hot = max(0, made.sealed - cold.received)  # that were never in the cold tier
    evicted_hot = min(made.evicted_unsunk, only_hot)
    left, in_flight, stored = only_hot - evicted_hot, 0, cold.stored
    if made.state == "drained":
        dropped[RUN_ENDED] += left + made.open
    elif alive:
        stored += left
        in_flight = made.open
    else:
        lost[LOST_WITH_SAMPLER] += left + made.open
    row = LedgerRow(
        sampler=made.sampler,
        produced=made.produced,
        trained=0,
        stored=stored,
        dropped={reason: count for reason, count in dropped.items() if count},
        in_flight=in_flight,
        lost={cause: count for cause, count in lost.items() if count},
        evicted=evicted_hot + cold.evicted,
    )
    return replace(row, problems=tuple(_replay_problems(row, made, cold)))


def _replay_problems(row: LedgerRow, made: SamplerAccount, cold: ColdAccount) -> Iterator[str]:
    yield from _sampler_problems(made)
    if cold.received > made.sealed:
        yield f"the cold tier received {cold.received} of {made.sealed} sealed: something was counted twice"
    kept = cold.stored + cold.evicted + sum(cold.lost.values())
    if kept != cold.received:
        yield f"the cold tier received {cold.received}, but {kept} are accounted for"
    if row.total != row.produced:
        yield f"produced {row.produced}, but {row.total} are accounted for"


def _sampler_problems(made: SamplerAccount) -> Iterator[str]:
    discarded = sum(made.discarded.values())
    if made.produced != discarded + made.sealed + made.open:
        yield f"produced {made.produced}, but discarded {discarded} + sealed {made.sealed} + open {made.open}"
