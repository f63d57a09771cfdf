"""The law of the ledger: produced = trained + stored + dropped + in flight + lost, per sampler incarnation.

Two accounts are combined. The sampler's says what was stepped, discarded, and sealed into fragments;
the learner's, which travels with the newest published version, says what was trained or dropped. What
neither knows the end of is in flight while somebody may still deliver it, and after that it is lost
(or dropped with the reason ``run_ended``, if everybody left in order).

Read the learner's accounts first and the samplers' after: then the sampler's are the newer ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
    has reported settled (-1: none), with ``settled`` transitions up to it. ``state``: ``drained``
    once it has left in order.
    """

    sampler: SamplerIdentity
    produced: int = 0
    discarded: Mapping[str, int] = field(default_factory=dict)
    sealed: int = 0
    open: int = 0
    last_sequence: int = -1
    settled_through: int = -1
    settled: int = 0
    state: SamplerState = "running"


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
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """All incarnations. ``balanced`` only if every check of every row holds."""

    rows: tuple[LedgerRow, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that does not add up, with the incarnation in front."""
        return tuple(f"{row.sampler}: {problem}" for row in self.rows for problem in row.problems)

    @property
    def balanced(self) -> bool:
        """Whether every transition is accounted for."""
        return not self.problems

    def totals(self) -> dict[str, object]:
        """The ``ledger`` part of ``summary.json``."""
        dropped, lost = Counter[str](), Counter[str]()
        for row in self.rows:
            dropped.update(row.dropped)
            lost.update(row.lost)
        return {
            "produced": sum(row.produced for row in self.rows),
            "trained": sum(row.trained for row in self.rows),
            "stored": sum(row.stored for row in self.rows),
            "dropped": dict(sorted(dropped.items())),
            "in_flight": sum(row.in_flight for row in self.rows),
            "lost": dict(sorted(lost.items())),
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
                    "dropped": dict(sorted(row.dropped.items())),
                    "in_flight": row.in_flight,
                    "lost": dict(sorted(row.lost.items())),
                }
                for row in self.rows
            ],
        }


def build_ledger(
    samplers: Iterable[SamplerAccount], learner: Iterable[LearnerAccount], *, run_over: bool
) -> Ledger:
    """Combine both sides. ``run_over``: all processes have ended, so nothing is in flight any more."""
    made = {account.sampler: account for account in samplers}
    settled = {account.sampler: account for account in learner}
    newest: dict[str, int] = {}
    for identity in (*made, *settled):
        newest[identity.sampler_id] = max(identity.incarnation, newest.get(identity.sampler_id, -1))
    return Ledger(
        tuple(
            _row(
                made.get(identity),
                settled.get(identity, LearnerAccount(identity)),
                superseded=identity.incarnation < newest[identity.sampler_id],
                run_over=run_over,
            )
            for identity in sorted({*made, *settled})
        )
    )


def _row(
    made: SamplerAccount | None, settled: LearnerAccount, *, superseded: bool, run_over: bool
) -> LedgerRow:
    dropped = Counter(settled.dropped)
    missing = dropped.pop(MISSING, 0)
    done = settled.trained + dropped.total() + missing
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
    problems = []
    discarded = sum(made.discarded.values())
    if made.produced != discarded + made.sealed + made.open:
        problems.append(
            f"produced {made.produced}, but discarded {discarded} + sealed {made.sealed} + open {made.open}"
        )
    if done > made.sealed:
        problems.append(f"{done} transitions settled of {made.sealed} sealed: something was counted twice")
    counts = (
        made.produced, made.sealed, made.open, made.settled, settled.trained, row.in_flight,
        *made.discarded.values(), *settled.dropped.values(), *row.lost.values(),
    )  # fmt: skip
    if min(counts) < 0:
        problems.append("a count is negative")
    total = row.trained + row.stored + sum(row.dropped.values()) + row.in_flight + sum(row.lost.values())
    if total != row.produced:
        problems.append(f"produced {row.produced}, but {total} are accounted for")
    return LedgerRow(
        sampler=row.sampler,
        produced=row.produced,
        trained=row.trained,
        stored=row.stored,
        dropped=row.dropped,
        in_flight=row.in_flight,
        lost=row.lost,
        problems=tuple(problems),
    )
