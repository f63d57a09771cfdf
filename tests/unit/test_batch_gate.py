"""When the next batch may be taken: full, nothing due, or a deadline has passed."""

from __future__ import annotations

import math

from headrace.flow.admission import Admission
from services.learner.gate import BatchGate, Decision


def make(
    *, size: int = 1, max_lag: int = 0, streams: int = 2, batch_deadline_s: float | None = None
) -> tuple[Admission, BatchGate]:
    admission = Admission(batch_fragments=size, max_lag=max_lag, version=0)
    for stream in range(streams):
        admission.join(stream, ahead=10)
    return admission, BatchGate(admission, batch_deadline_s=batch_deadline_s, straggler_deadline_s=30.0)


def held(admission: Admission, count: int, stream: int = 0) -> int:
    for _ in range(count):
        admission.arrived(stream, admission.current)
    return admission.num_held


def test_a_full_batch_with_nothing_due_is_taken_at_once() -> None:
    admission, gate = make(size=2)
    assert gate.decide(0.0, held=held(admission, 3), is_low=False) == Decision(2)


def test_what_is_due_is_waited_for_until_the_straggler_deadline() -> None:
    admission, gate = make(max_lag=1)
    admission.join(7, ahead=1, started=1)
    admission.advance(1, consumed=False)
    number = held(admission, 1)
    waiting = gate.decide(100.0, held=number, is_low=False)
    assert (waiting.count, waiting.reason, waiting.alarm, waiting.overdue) == (0, "straggler", 130.0, ())
    late = gate.decide(130.0, held=number, is_low=False)
    assert [stream for stream, _ in late.overdue] == [7]
    admission.lapse(*late.overdue[0])
    assert gate.decide(130.0, held=number, is_low=False).count == 1


def test_who_has_no_credit_is_not_waited_for() -> None:
    admission, gate = make(max_lag=1)
    admission.join(7, ahead=1, started=1)
    admission.advance(1, consumed=False)
    assert gate.decide(0.0, held=held(admission, 1), is_low=False, unable={7}).count == 1


def test_too_few_are_waited_for_without_a_deadline_while_more_may_be_started() -> None:
    admission, gate = make(size=2, max_lag=1)
    admission.issue(0)
    decision = gate.decide(0.0, held=0, is_low=True)
    assert (decision.count, decision.reason, decision.alarm) == (0, "samplers", math.inf)


def test_one_that_holds_up_everything_lapses_even_if_too_few_have_come() -> None:
    admission, gate = make(size=2)
    admission.issue(0)
    admission.issue(1)
    number = held(admission, 1)
    assert gate.decide(0.0, held=number, is_low=True).alarm == 30.0
    assert [stream for stream, _ in gate.decide(30.0, held=number, is_low=True).overdue] == [1]


def test_the_straggler_deadline_begins_when_it_is_first_waited_for() -> None:
    admission, gate = make(size=2)
    admission.issue(0)
    assert gate.decide(0.0, held=0, is_low=True).alarm == math.inf, "another may still be started"
    admission.issue(1)
    assert gate.decide(20.0, held=0, is_low=True).alarm == 50.0


def test_the_only_sampler_is_waited_for_as_long_as_it_takes() -> None:
    admission, gate = make(streams=1)
    admission.issue(0)
    assert gate.decide(0.0, held=0, is_low=True) == Decision(0, "samplers")


def test_a_smaller_batch_needs_the_deadline_a_low_buffer_and_at_least_one_fragment() -> None:
    admission, gate = make(size=4, max_lag=1, batch_deadline_s=2.0)
    number = held(admission, 1)
    assert gate.decide(0.0, held=number, is_low=True).alarm == 2.0
    assert gate.decide(2.0, held=0, is_low=True).count == 0
    assert gate.decide(2.0, held=number, is_low=False).count == 0
    assert gate.decide(2.0, held=number, is_low=True).count == 1


def test_a_taken_batch_begins_a_new_wait() -> None:
    admission, gate = make(size=2, max_lag=1, batch_deadline_s=2.0)
    number = held(admission, 1)
    gate.decide(0.0, held=number, is_low=True)
    gate.taken()
    assert gate.decide(5.0, held=number, is_low=True).alarm == 7.0


def test_a_full_pipeline_waits_for_parameters() -> None:
    admission, gate = make(size=1)
    held(admission, 1)
    admission.take([0])
    assert gate.decide(0.0, held=0, is_low=True).reason == "parameters"
