"""When the next batch may be taken, what it waits for, and when waiting ends. Pure: time is an argument."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from headrace.flow.admission import Admission
from headrace.flow.messages import Permit

SAMPLERS = "samplers"
STRAGGLER = "straggler"
PARAMETERS = "parameters"


@dataclass(frozen=True, slots=True)
class Decision:
    """``count`` fragments may be taken now (0: wait, because of ``reason``, and look again at ``alarm``).

    ``overdue``: permits to stop waiting for. ``alarm`` is on the caller's clock, inf: no timer runs.
    """

    count: int
    reason: str = ""
    overdue: tuple[tuple[int, Permit], ...] = ()
    alarm: float = math.inf


class BatchGate:
    """Decides for one update after the other.

    A batch has ``admission.batch_fragments`` fragments. It waits for what is due (see
    :meth:`Admission.due`), for each permit at most ``straggler_deadline_s`` seconds. Where too few have
    come and nothing more may be admitted, permits lapse likewise, to be given to others. With
    ``batch_deadline_s`` a batch may be smaller after so many seconds of waiting, if the buffer is under
    its low watermark and nothing is due.
    """

    def __init__(
        self, admission: Admission, *, batch_deadline_s: float | None, straggler_deadline_s: float
    ) -> None:
        self._admission = admission
        self._batch_deadline_s = batch_deadline_s
        self._straggler_deadline_s = straggler_deadline_s
        self._since: float | None = None  # when the wait for this batch began
        self._watched: dict[int, float] = {}  # index of a permit waited for, since when

    def decide(self, now: float, *, held: int, is_low: bool, unable: Collection[int] = ()) -> Decision:
        """Look at the state of things; ``held`` usable fragments are there.

        ``unable``: streams that can't deliver as long as nothing is taken.
        """
        admission, size = self._admission, self._admission.batch_fragments
        full = held >= size
        may_be_smaller = held > 0 and self._batch_deadline_s is not None and not full
        due = []
        if full or may_be_smaller:
            due = [(stream, permit) for stream, permit in admission.due() if stream not in unable]
        if full and not due:
            return Decision(size)
        since = self._since = now if self._since is None else self._since
        watched = due
        if not full and not may_be_smaller and admission.num_streams > 1 and not admission.is_open():
            watched = admission.all_outstanding()  # others could deliver in their stead
        self._watched = {permit.index: self._watched.get(permit.index, now) for _, permit in watched}
        ends = {index: began + self._straggler_deadline_s for index, began in self._watched.items()}
        overdue = tuple((stream, permit) for stream, permit in watched if ends[permit.index] <= now)
        alarm = min(ends.values(), default=math.inf)
        if may_be_smaller and self._batch_deadline_s is not None and not due and is_low:
            deadline = since + self._batch_deadline_s
            if deadline <= now:
                return Decision(held)
            alarm = min(alarm, deadline)
        return Decision(0, self._reason(held, bool(due)), overdue, alarm)

    def taken(self) -> None:
        """The batch was taken: the next wait begins anew."""
        self._since = None
        self._watched.clear()

    def _reason(self, held: int, due: bool) -> str:
        admission = self._admission
        if held >= admission.batch_fragments and due:
            return STRAGGLER
        pipeline_full = admission.num_outstanding == 0 and not admission.is_open()
        return PARAMETERS if pipeline_full and admission.next_update > admission.current else SAMPLERS
