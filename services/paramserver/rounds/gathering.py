"""Where learners meet: who is here, what they bring, when a round closes, what each is told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.clients.blobs import STATE, VECTOR
from headrace.config.choices import group_size
from headrace.config.sections import Config
from headrace.errors import (
    FencedError,
    HandshakeError,
    HeadraceError,
    InvalidDataError,
    UnavailableError,
)
from headrace.events import EventLog
from headrace.sync.contribution import JOINED, REGROUP, Contribution, Contributor, GroupRequest, RoundResult
from headrace.sync.layout import Layout
from headrace.sync.policies import round_policy, staleness_rule
from headrace.sync.rounds import Closing, Rounds
from headrace.sync.staleness import APPLIED, INVALID
from headrace.types import PolicyVersion
from services.paramserver.core import ParameterServer
from services.paramserver.metrics import ParamserverMetrics
from services.paramserver.rounds.groups import Groups, expected_parties
from services.paramserver.rounds.judging import Verdict, judge, tell_invalid
from services.paramserver.rounds.members import Answer, Member
from services.paramserver.rounds.model import Part, SharedModel
from services.paramserver.rounds.totals import Totals, merged_accounts
from services.paramserver.rounds.tuning import Tuning
from services.paramserver.versions import Update

_SMALL_TRAINING_BYTES = 4 * 2**20  # up to this size the training state is part of every version
_LOOK_UP_S = 0.5  # how often a waiting learner's stream looks whether its learner is still there
_RETRY_S = 0.5  # a version that could not be issued
_REGROUP = Verdict(REGROUP, 0.0, 0)  # the same work is to be done again, in another group


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
        size = group_size(config)
        self._rounds = Rounds(round_policy(config), expected=expected_parties(config))
        self._groups: Groups | None = None
        if size is not None:
            self._groups = Groups(
                self._rounds,
                learners=config.learner.count,
                group_size=size,
                epoch=core.epoch,
                deadline_s=config.sync.straggler_deadline_s,
            )
        self._rule = staleness_rule(config)
        self._tuning = Tuning(events, metrics) if config.sync.local_steps == "auto" else None
        self._members: dict[str, Member] = {}
        self._contributors: dict[str, Contributor] = {}
        self._model: SharedModel | None = None
        self._totals: Totals | None = None
        self._prepared: _Prepared | None = None
        self._want_training = True

    def join(
        self,
        learner_id: str,
        incarnation: int,
        layout: Layout,
        have: PolicyVersion,
        *,
        rendezvous: str = "",
    ) -> tuple[Member, Answer]:
        """A learner is here, with version ``have``. Ends any other stream of the same learner.

        FencedError: nothing was published yet, or ``have`` is newer than what is left of it here.
        HandshakeError: it learns something else than this run's learners. UnavailableError: try again.
        """
        with self._changed:
            self._finish_pending()
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
            if self._groups is None:
                self._rounds.join(learner_id)
            else:
                self._groups.join(learner_id, rendezvous)
            self._metrics.learners.set(len(self._members))
            self._events.emit("learner_joined", learner=learner_id, members=len(self._members))
            blobs = {} if have == model.version else model.blobs()
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

    def ask(self, member: Member, request: GroupRequest, alive: Callable[[], bool]) -> Answer:
        """Wait until this learner has a group, or the run has ended. Raises as :meth:`contribute` does."""
        with self._changed:
            self._finish_pending()
            self._check(member, lambda: True)
            if self._groups is None:
                raise InvalidDataError("there are no groups of learners in this run")
            if request.generation:
                self._events.emit(
                    "group_broken",
                    reason=request.reason,
                    learner=member.learner_id,
                    generation=request.generation,
                )
            self._groups.ask(member.learner_id, request.generation, self._clock())
            return self._wait(member, alive)

    def contribute(self, member: Member, contribution: Contribution, alive: Callable[[], bool]) -> Answer:
        """Take part in a round and wait until it has closed.

        UnavailableError: the stream is over, as ``alive`` says. HandshakeError: a newer one of the same
        learner has taken its place.
        """
        began = self._clock()
        with self._changed:
            self._finish_pending()
            self._refresh()
            refused = self._admit(member, contribution)
            if refused is not None:
                return refused
            self._rounds.offer(member.learner_id, self._clock())
            answer = self._wait(member, alive)
        self._metrics.sync_rtt_seconds.observe(self._clock() - began)
        return answer

    # Inside; the caller holds ``_changed``.

    def _wait(self, member: Member, alive: Callable[[], bool]) -> Answer:
        """What this member is told, once the round or the group that it waits for has come about."""
        self._close_if_due()
        while member.answer is None:
            self._check(member, alive)
            if member.part is None and self._core.status().ended:
                return self._tell(member, _REGROUP, member.base)
            self._changed.wait(max(0.01, min(_LOOK_UP_S, self._rounds.alarm() - self._clock())))
            self._close_if_due()
        answer, member.answer = member.answer, None
        return answer

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
            known = Verdict(APPLIED, 0.0, 0, "it is part of a version already")
            return self._tell(member, known, contribution.base, counted=False)
        if self._groups is not None and self._groups.group_of(member.learner_id) is None:
            return self._tell(member, _REGROUP, contribution.base)
        model, _ = self._loaded()
        verdict = judge(contribution, model, member.base, self._rule)
        self._metrics.gradient_lag.observe(verdict.lag)
        if verdict.outcome == INVALID:
            tell_invalid(self._events, member.learner_id, member.incarnation, contribution, verdict.detail)
        # What a group has learned is used as a whole or not at all: its members hear of it together.
        if verdict.refused and self._groups is None:
            return self._tell(member, verdict, contribution.base)
        member.verdict = verdict
        member.part = Part(contribution, verdict.factor, member.given, contribution.num_samples)
        return None

    def _close_if_due(self) -> None:
        if self._prepared is None:
            now = self._clock()
            self._regroup_if_due(now)
            ended = self._core.status().ended
            closing = self._rounds.end(now) if ended else self._rounds.close(now)
            if closing is None:
                return
            members = self._without_refused([self._members[one] for one in closing.members])
            if not members:
                return
            self._prepared = self._prepare(members, closing)
        self._issue(self._prepared)

    def _without_refused(self, members: Sequence[Member]) -> list[Member]:
        """Those whose work is used. The others are told at once, with their whole groups."""
        if self._groups is None:
            return list(members)
        refused: dict[str, Verdict] = {}
        for member in members:
            if member.verdict is not None and member.verdict.refused:
                refused.setdefault(self._groups.party_of(member.learner_id), member.verdict)
        out = [member for member in members if self._groups.party_of(member.learner_id) in refused]
        if out:
            verdicts = {one.learner_id: refused[self._groups.party_of(one.learner_id)] for one in out}
            self._answer(out, verdicts)
        return [member for member in members if member not in out]

    def _regroup_if_due(self, now: float) -> None:
        """Groups that are broken come together anew; what their members have brought they do again."""
        formed = [] if self._groups is None else self._groups.form_due(now)
        for learner_id in formed:
            member = self._members[learner_id]
            member.part = member.verdict = None
            member.answer = self._tell(member, _REGROUP, member.base)
        if formed:
            self._events.emit("group_formed", members=formed)
            self._changed.notify_all()

    def _prepare(self, members: Sequence[Member], closing: Closing) -> _Prepared:
        """Apply a round to the model."""
        model, totals = self._loaded()
        parts = self._parts(members)
        began = self._clock()
        model.step(parts)
        self._metrics.aggregation_seconds.observe(self._clock() - began)
        self._metrics.round_seconds.observe(closing.open_s)
        self._metrics.rounds.labels(closed_by=closing.reason).inc()
        report = totals.add(parts)
        if self._tuning is not None:
            self._tuning.observe(report, parts)
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
        return _Prepared(tuple(members), update)

    def _parts(self, members: Sequence[Member]) -> list[Part]:
        """What a round is made of. The one vector of a group counts for the samples of all its members."""
        parts = [member.part for member in members if member.part is not None]
        if self._groups is None:
            return parts
        parties = [self._groups.party_of(member.learner_id) for member in members]
        samples: Counter[str] = Counter()
        for party, part in zip(parties, parts, strict=True):
            samples[party] += part.contribution.num_samples
        return [replace(part, num_samples=samples[party]) for party, part in zip(parties, parts, strict=True)]

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
            verdict = Verdict(INVALID, 0.0, 0, str(error))
            self._prepared = None
            self._answer(prepared.members, {one.learner_id: verdict for one in prepared.members})
            return
        self._want_training = published.want_training
        model.published(published.version)
        self._prepared = None
        self._answer(prepared.members, {})

    def _finish_pending(self) -> None:
        """The model has taken a round in whose version isn't there yet: nobody may see it so."""
        if self._prepared is not None:
            self._issue(self._prepared)
        if self._prepared is not None:
            raise UnavailableError("a version can't be issued yet, as its number can't be written")

    def _answer(self, members: Sequence[Member], instead: Mapping[str, Verdict]) -> None:
        """Tell the members of a round what has become of their work; ``instead`` of what was judged."""
        names = [member.learner_id for member in members]
        newcomers = [] if self._groups is None else self._groups.after_close(names)
        for member in members:
            assert member.part is not None, "it is in the round"
            assert member.verdict is not None, "it is in the round"
            brought, verdict = member.part.contribution, instead.get(member.learner_id, member.verdict)
            member.part = member.verdict = None
            member.answer = self._tell(member, verdict, brought.base, brought.values_sha256)
        for learner_id in newcomers:
            newcomer = self._members[learner_id]
            newcomer.answer = self._tell(newcomer, _REGROUP, newcomer.base)
        if newcomers:
            self._events.emit("group_formed", members=[*names, *newcomers])
        self._changed.notify_all()

    def _tell(
        self, member: Member, verdict: Verdict, base: PolicyVersion, sha256: str = "", *, counted: bool = True
    ) -> Answer:
        """What a learner is told that went on from ``base``, with the newest version if that is another.

        ``sha256`` is of the values that it holds: the same ones are not sent again.
        """
        model, _ = self._loaded()
        if counted and verdict is not _REGROUP:
            self._metrics.gradients.labels(outcome=verdict.outcome).inc()
        result = replace(self._result(member, verdict.outcome), detail=verdict.detail, lag=verdict.lag)
        member.given, member.base = model.values, model.version
        blobs = {} if base == model.version else model.blobs()
        if VECTOR in blobs and blobs[VECTOR].sha256 == sha256:
            blobs = {STATE: blobs[STATE]}
        return Answer(result, blobs)

    def _result(self, member: Member, outcome: str) -> RoundResult:
        model, _ = self._loaded()
        view = self._core.view()
        assert view.report is not None, "a model is made of a published version"
        return RoundResult(
            outcome=outcome,
            version=model.version,
            status=view.status,
            report=view.report,
            want_training=self._wants_training(member),
            applied_through=self._applied_through(member),
            local_steps=None if self._tuning is None else self._tuning.steps,
            group=None if self._groups is None else self._groups.group_of(member.learner_id),
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
        if self._groups is not None:
            self._groups.leave(member.learner_id, self._clock())
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
