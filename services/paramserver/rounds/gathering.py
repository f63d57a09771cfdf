"""Where learners meet: who is here, what they bring, when a round closes, what each is told."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from headrace.checkpoint import Blob
from headrace.config.sections import Config
from headrace.errors import FencedError, HandshakeError, HeadraceError, UnavailableError
from headrace.events import EventLog
from headrace.sync.aggregation import FlatArray, first_not_finite
from headrace.sync.contribution import JOINED, Contribution, Contributor, RoundResult
from headrace.sync.layout import Layout
from headrace.sync.policies import round_policy, staleness_rule
from headrace.sync.rounds import Closing, Rounds
from headrace.sync.staleness import APPLIED, INVALID, STALE, Judgement
from headrace.types import PolicyVersion
from services.paramserver.core import ParameterServer
from services.paramserver.metrics import ParamserverMetrics
from services.paramserver.rounds.model import Part, SharedModel
from services.paramserver.rounds.totals import Totals, merged_accounts
from services.paramserver.versions import Update

_SMALL_TRAINING_BYTES = 4 * 2**20  # up to this size the training state is part of every version
_LOOK_UP_S = 0.5  # how often a waiting learner's stream looks whether its learner is still there
_RETRY_S = 0.5  # a version that could not be issued


@dataclass(frozen=True, slots=True)
class Answer:
    """What a learner is told, and vector and state of the newest version, if it is to have them."""

    result: RoundResult
    blobs: tuple[Blob, Blob] | None


@dataclass(slots=True, eq=False)
class Member:
    """A learner that is here. ``given``: the values of the version it goes on from."""

    learner_id: str
    incarnation: int
    given: FlatArray
    base: PolicyVersion
    part: Part | None = None
    judgement: Judgement | None = None
    lag: int = 0
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A closed round whose version is still to be issued."""

    members: tuple[Member, ...]
    update: Update


class Gathering:
    """Rounds over the streams of learners. Thread-safe.

    ``_changed`` guards everything and is held while a version is issued: nothing may join or close a round
    meanwhile. The thread whose contribution or patience closes a round does its work; the others wait.
    """

    def __init__(
        self,
        core: ParameterServer,
        config: Config,
        *,
        events: EventLog,
        metrics: ParamserverMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._config = config
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._changed = threading.Condition()
        expected = [f"learner-{index}" for index in range(config.learner.count)]
        self._rounds = Rounds(round_policy(config), expected=expected)
        self._rule = staleness_rule(config)
        self._members: dict[str, Member] = {}
        self._contributors: dict[str, Contributor] = {}
        self._model: SharedModel | None = None
        self._totals: Totals | None = None
        self._prepared: _Prepared | None = None
        self._want_training = True

    def join(
        self, learner_id: str, incarnation: int, layout: Layout, have: PolicyVersion
    ) -> tuple[Member, Answer]:
        """A learner is here, with version ``have``. Ends any other stream of the same learner.

        FencedError: nothing was published yet, or ``have`` is newer than what is left of it here.
        HandshakeError: it learns something else than this run's learners.
        """
        with self._changed:
            if self._core.misses(have):
                raise FencedError("publish the version you have first: there is none, or an older one, here")
            if self._model is None:
                self._load(layout)
            model, _ = self._loaded()
            if model.layout != layout:
                raise HandshakeError(f"{learner_id} has other parameters than the learners of this run")
            self._refresh()
            member = Member(learner_id, incarnation, model.values, model.version)
            self._leave(self._members.get(learner_id))
            self._members[learner_id] = member
            self._rounds.join(learner_id)
            self._metrics.learners.set(len(self._members))
            self._events.emit("learner_joined", learner=learner_id, members=len(self._members))
            blobs = None if have == model.version else model.blobs()
            self._changed.notify_all()
            return member, Answer(self._result(member, JOINED), blobs)

    def completed(self, update: Update) -> Update:
        """What a learner publishes by itself, with the accounts of the samplers that are not its own."""
        with self._changed:
            view = self._core.view()
            return replace(update, accounts=merged_accounts(view.accounts, update.accounts))

    def leave(self, member: Member) -> None:
        """This stream of a learner is over. Idempotent."""
        with self._changed:
            self._leave(member)

    def contribute(self, member: Member, contribution: Contribution, alive: Callable[[], bool]) -> Answer:
        """Take part in a round and wait until it has closed.

        UnavailableError: the stream is over, as ``alive`` says. HandshakeError: a newer one of the same
        learner has taken its place.
        """
        began = self._clock()
        with self._changed:
            self._refresh()
            refused = self._admit(member, contribution)
            if refused is not None:
                return refused
            self._rounds.offer(member.learner_id, self._clock())
            self._close_if_due()
            while member.answer is None:
                self._check(member, alive)
                self._changed.wait(max(0.01, min(_LOOK_UP_S, self._rounds.alarm() - self._clock())))
                self._close_if_due()
            answer, member.answer = member.answer, None
        self._metrics.sync_rtt_seconds.observe(self._clock() - began)
        return answer

    # Inside; the caller holds ``_changed``.

    def _check(self, member: Member, alive: Callable[[], bool]) -> None:
        if self._members.get(member.learner_id) is not member:
            newer = self._members.get(member.learner_id)
            if newer is not None and newer.incarnation != member.incarnation:
                raise HandshakeError(f"another process has joined as {member.learner_id}")
            raise UnavailableError(f"{member.learner_id} has opened another stream")
        if not alive():
            raise UnavailableError(f"the stream of {member.learner_id} is over")

    def _admit(self, member: Member, contribution: Contribution) -> Answer | None:
        """Let a contribution into the open round; else what its learner is told at once."""
        self._check(member, lambda: True)
        if contribution.sequence <= self._applied_through(member):
            return self._tell(member, APPLIED, "it is part of a version already", contribution.base)
        model, _ = self._loaded()
        member.lag = max(0, model.version.number - contribution.base.number)
        self._metrics.gradient_lag.observe(member.lag)
        problem = _problem_of(model, contribution)
        if problem:
            self._events.emit(
                "contribution_invalid",
                reason=problem,
                learner=member.learner_id,
                incarnation=member.incarnation,
                sequence=contribution.sequence,
                base=str(contribution.base),
            )
            return self._tell(member, INVALID, problem, contribution.base)
        judgement = self._rule.judge(member.lag)
        if contribution.base != member.base:
            judgement = Judgement(STALE, 0.0)  # of another epoch, or of a version that it was not given here
        if judgement.outcome == STALE:
            detail = f"computed from version {contribution.base}, the newest is {model.version}: resample"
            return self._tell(member, STALE, detail, contribution.base)
        member.judgement = judgement
        member.part = Part(contribution, judgement.factor, member.given)
        return None

    def _close_if_due(self) -> None:
        if self._prepared is None:
            now = self._clock()
            ended = self._core.status().ended
            closing = self._rounds.end(now) if ended else self._rounds.close(now)
            if closing is None:
                return
            self._prepared = self._prepare(closing)
        self._issue(self._prepared)

    def _prepare(self, closing: Closing) -> _Prepared:
        """Apply a round to the model."""
        model, totals = self._loaded()
        members = tuple(self._members[learner_id] for learner_id in closing.members)
        parts = [member.part for member in members if member.part is not None]
        began = self._clock()
        model.step(parts)
        self._metrics.aggregation_seconds.observe(self._clock() - began)
        self._metrics.round_seconds.observe(closing.open_s)
        self._metrics.rounds.labels(closed_by=closing.reason).inc()
        report = totals.add(parts)
        contributors = {
            member.learner_id: Contributor(
                member.learner_id, member.incarnation, member.part.contribution.sequence
            )
            for member in members
            if member.part is not None
        }
        self._contributors.update(contributors)
        with_training = self._want_training or model.nbytes <= _SMALL_TRAINING_BYTES
        update = Update(
            base=model.version,
            report=report,
            accounts=totals.accounts,
            acting=model.acting(),
            training=model.training(totals.columns()) if with_training else None,
            contributors=tuple(self._contributors.values()),
        )
        return _Prepared(members, update)

    def _issue(self, prepared: _Prepared) -> None:
        """Make a version of a round that was applied; if its number can't be written, try again later."""
        model, _ = self._loaded()
        try:
            published = self._core.publish(prepared.update)
        except UnavailableError:
            self._changed.wait(_RETRY_S)
            return
        except HeadraceError as error:
            self._events.emit("round_refused", reason=str(error))
            self._reload()
            self._answer(prepared, INVALID, str(error))
            return
        self._want_training = published.want_training
        model.published(published.version)
        self._answer(prepared, None, "")

    def _answer(self, prepared: _Prepared, outcome: str | None, detail: str) -> None:
        self._prepared = None
        for member in prepared.members:
            assert member.part is not None, "it is in the round"
            assert member.judgement is not None, "it is in the round"
            base, judged = member.part.contribution.base, member.judgement.outcome
            member.part = member.judgement = None
            member.answer = self._tell(member, outcome or judged, detail, base)
        self._changed.notify_all()

    def _tell(self, member: Member, outcome: str, detail: str, base: PolicyVersion) -> Answer:
        """What a learner is told that went on from ``base``, with the newest version if that is another."""
        model, _ = self._loaded()
        self._metrics.gradients.labels(outcome=outcome).inc()
        result = replace(self._result(member, outcome), detail=detail)
        member.given, member.base = model.values, model.version
        return Answer(result, None if base == model.version else model.blobs())

    def _result(self, member: Member, outcome: str) -> RoundResult:
        model, _ = self._loaded()
        view = self._core.view()
        assert view.report is not None, "a model is made of a published version"
        return RoundResult(
            outcome=outcome,
            version=model.version,
            status=view.status,
            report=view.report,
            lag=member.lag,
            want_training=self._wants_training(member),
            applied_through=self._applied_through(member),
        )

    def _applied_through(self, member: Member) -> int:
        """Highest sequence of this incarnation that is part of a version; -1: none."""
        known = self._contributors.get(member.learner_id)
        return known.sequence if known is not None and known.incarnation == member.incarnation else -1

    def _wants_training(self, member: Member) -> bool:
        """One learner's training state is enough, and where it is large only when a checkpoint is due."""
        model, _ = self._loaded()
        small = model.nbytes <= _SMALL_TRAINING_BYTES
        return member.learner_id == min(self._members, default="") and (small or self._want_training)

    def _leave(self, member: Member | None) -> None:
        if member is None or self._members.get(member.learner_id) is not member:
            return
        del self._members[member.learner_id]
        void = self._rounds.leave(member.learner_id)
        self._metrics.learners.set(len(self._members))
        self._events.emit(
            "learner_left", learner=member.learner_id, members=len(self._members), contribution_void=void
        )
        self._changed.notify_all()

    def _loaded(self) -> tuple[SharedModel, Totals]:
        assert self._model is not None, "nobody has joined"
        assert self._totals is not None, "nobody has joined"
        return self._model, self._totals

    def _load(self, layout: Layout) -> None:
        record = self._core.fetch()
        assert record is not None
        try:
            self._model = SharedModel(self._config, layout, record)
        except (KeyError, ValueError) as error:
            raise HandshakeError(
                f"the newest version does not fit what the learner learns: {error}"
            ) from error
        self._totals = Totals(record, record.training_state() or {})
        self._contributors = {one.learner_id: one for one in record.contributors}

    def _reload(self) -> None:
        """Back to the newest version."""
        model, _ = self._loaded()
        self._load(model.layout)

    def _refresh(self) -> None:
        """Take in a version that a learner has published by itself."""
        model, _ = self._loaded()
        record = self._core.fetch()
        if self._prepared is None and record is not None and record.version != model.version:
            self._reload()


def _problem_of(model: SharedModel, contribution: Contribution) -> str:
    """Why a contribution can't be used, in words; empty if it can."""
    kinds = ("gradient",) if model.takes_gradients else ("values", "change", "none")
    if contribution.kind not in kinds:
        return f"a contribution of kind {contribution.kind}, where {' or '.join(kinds)} was expected"
    place = first_not_finite(contribution.vector)
    if place is not None:
        return f"{model.layout.name_of(place)} is {contribution.vector[place]}"
    for name, array in contribution.state.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{name} is not finite"
    if not math.isfinite(contribution.learning_rate):
        return f"the learning rate is {contribution.learning_rate}"
    return model.mismatch(contribution.state)
