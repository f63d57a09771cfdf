"""What a receiver of fragments tells a sender: credit, permits, settlement, refusal.

Plain values: the servicer writes them on the wire, the client reads them back. All counts are
cumulative or absolute, so a message that is lost or coalesced with a later one does no harm;
only permits add up (coalescing concatenates them).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.types import PolicyVersion


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to start one fragment, with a policy of at least version number ``min_version``.

    ``index`` is its place in the order of training. A sender uses the lowest index first and
    forgets permits it has not used when its stream ends.
    """

    index: int
    min_version: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Credit of one stream: bytes in total since it was opened (cumulative), and new permits.

    ``throttled_by`` says why there is no more: ``""``, ``"high_watermark"``, ``"policy_lag"`` or ``"redis"``.
    ``quota_steps``: steps per lane that fragments started from now on are to hold (0: all that fit).
    """

    total_bytes: int
    permits: tuple[Permit, ...] = ()
    throttled_by: str = ""
    quota_steps: int = 0


@dataclass(frozen=True, slots=True)
class Settled:
    """Every sequence up to ``through`` is trained into a published version, or dropped."""

    through: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A fragment did not get in. The sender keeps it until a :class:`Settled` covers it, like any other."""

    sequence: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Release:
    """The sender's hot tier has let go of every fragment up to ``through``: their copies may be drawn.

    ``priorities`` are the newest ones of the fragment ``through``, ``[T * B]``; None: as they came with it.
    """

    through: int
    priorities: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The receiver ends the stream; nothing follows. ``draining``: the sender should reconnect."""

    reason: str
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream is open: forget what is settled, resend everything later, in order, then go on.

    ``token`` names the stream at the receiver. ``paced``: a permit is needed for each new fragment.
    """

    token: int
    settled_through: int
    version: PolicyVersion
    paced: bool


ToSampler = Grant | Settled | Refused | Closed
"""Anything a receiver sends on an open stream."""
