"""The learners beside this one, as an algorithm sees them in the middle of an update."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Peers(Protocol):
    """Asked at every gradient step. All learners of a group ask in the same order, equally often."""

    def combine(self, gradients: Tensor, rows: int) -> bool:
        """Make of this learner's ``gradients``, a mean over ``rows``, what is to be stepped along.

        In place. False: there is to be no step here and now. ``rows`` 0: there are none to add.
        """
        ...

    def agree(self, number: int) -> int:
        """The largest ``number`` that any of the group says: all then do equally much."""
        ...


class Alone:
    """No learners beside this one."""

    def combine(self, gradients: Tensor, rows: int) -> bool:
        """Step along the gradients as they are, if they are of anything."""
        del gradients
        return rows > 0

    def agree(self, number: int) -> int:
        """What this one says."""
        return number
