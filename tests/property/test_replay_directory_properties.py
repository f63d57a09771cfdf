"""Samplers, a learner and their directory die and come back: nothing counts twice, and all go on."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.replay.directory import Directory
from headrace.replay.limiter import FRAGMENTS_AHEAD, Limits
from headrace.replay.members import DirectoryTotals, ShardIdentity, ShardReport, ShardStatus
from headrace.types import SamplerIdentity

SAMPLERS = 3
F = 7


class Sampler:
    """One sampler over its lives: it inserts only with leave, and reports when it likes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = -1
        self.past = 0  # reported by earlier lives
        self.inserted = self.reported = self.allowance = 0
        self.token: int | None = None


class DirectoryMachine(RuleBasedStateMachine):
    """Everything stays within its leave; who is killed loses what it had not reported."""

    @initialize(ratio=st.floats(0.1, 8.0), min_size=st.integers(1, 60), draw=st.integers(1, 40))
    def begin(self, ratio: float, min_size: int, draw: int) -> None:
        self.limits = Limits(ratio, min_size, 0.1, FRAGMENTS_AHEAD * F * SAMPLERS, draw)
        self.now = 0.0
        self.saved = DirectoryTotals()
        self.samplers = [Sampler(f"sampler-{index}") for index in range(SAMPLERS)]
        self.drawn = self.sample_allowance = 0
        self.learner_number = 0
        self.restart_directory()
        for index in range(SAMPLERS):
            self.start_sampler(index)

    @rule()
    def restart_directory(self) -> None:
        """It comes back with what it saved last, and everybody connects again."""
        self.directory = Directory(
            self.limits, outage_s=10.0, rebalance_drift=0.1, clock=lambda: self.now, before=self.saved
        )
        self.learner, self.learner_number = self.directory.follow("learner-0", self.learner_number)
        self.directory.learner_reports(self.learner, self.drawn)
        for sampler in self.samplers:
            if sampler.token is not None:
                self.join(sampler)
        self.save()

    @rule()
    def save(self) -> None:
        self.saved = self.directory.save()

    @rule(index=st.integers(0, SAMPLERS - 1))
    def start_sampler(self, index: int) -> None:
        """A new life, whatever became of the one before."""
        sampler = self.samplers[index]
        sampler.past += sampler.reported
        sampler.incarnation += 1
        sampler.inserted = sampler.reported = sampler.allowance = 0
        self.join(sampler)
        self.save()

    @rule(index=st.integers(0, SAMPLERS - 1))
    def reconnect(self, index: int) -> None:
        if self.samplers[index].token is not None:
            self.join(self.samplers[index])

    @rule(index=st.integers(0, SAMPLERS - 1))
    def act(self, index: int) -> None:
        sampler = self.samplers[index]
        if sampler.token is not None and sampler.inserted + F <= sampler.allowance:
            sampler.inserted += F

    @rule(index=st.integers(0, SAMPLERS - 1))
    def report(self, index: int) -> None:
        sampler = self.samplers[index]
        if sampler.token is not None:
            status = ShardStatus(sampler.inserted, sampler.inserted, sampler.inserted)
            report = ShardReport(status, insert_allowance=sampler.allowance)
            self.directory.report(sampler.token, report)
            sampler.reported = sampler.inserted
        self.hear()

    @rule()
    def draw(self) -> None:
        if self.drawn + self.limits.largest_draw <= self.sample_allowance:
            self.drawn += self.limits.largest_draw
            self.directory.learner_reports(self.learner, self.drawn)
        self.hear()

    def join(self, sampler: Sampler) -> None:
        identity = SamplerIdentity(sampler.name, sampler.incarnation)
        sampler.token = self.directory.join(ShardIdentity(sampler.name, "host:1", "hot", identity, F))
        self.report(self.samplers.index(sampler))

    def hear(self) -> None:
        grants = dict(self.directory.grants())
        for sampler in self.samplers:
            if sampler.token in grants:
                sampler.allowance = max(sampler.allowance, grants[sampler.token].insert_allowance)
        for view in dict(self.directory.views()).values():
            self.sample_allowance = view.sample_allowance

    @invariant()
    def every_transition_and_every_draw_counts_once(self) -> None:
        reported = sum(sampler.past + sampler.reported for sampler in self.samplers)
        view = self.directory.glance().view
        assert view.env_steps == reported
        assert view.samples == self.drawn

    @invariant()
    def nobody_draws_more_than_there_was_to_learn_from(self) -> None:
        limits = self.limits
        inserted = sum(sampler.past + sampler.reported for sampler in self.samplers)
        cursor = inserted * Fraction(limits.samples_per_insert or 0) - self.drawn
        assert not self.drawn or cursor >= limits.middle - limits.tolerance

    @rule()
    def somebody_may_go_on(self) -> None:
        """Once all has been reported, and after a moment, a sampler may act or the learner may draw."""
        for index in range(SAMPLERS):
            self.report(index)
        self.now += 1.0
        self.hear()
        may_act = any(sampler.inserted + F <= sampler.allowance for sampler in self.samplers)
        assert may_act or self.drawn + self.limits.largest_draw <= self.sample_allowance


TestDirectory = DirectoryMachine.TestCase
TestDirectory.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
