"""First priorities of new items, from what the sampler knows: no item waits for a learner to be drawn well.

Horgan et al., "Distributed Prioritized Experience Replay" (2018), section 3: computed where the data is made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.rl.returns import n_step_returns
from headrace.types import ACTION_VALUE, VALID, Fragment

SMALLEST = 1e-6
"""Added to each error, so that an item that is predicted perfectly can still be drawn."""


def initial_priorities(fragment: Fragment, *, gamma: float, n_step: int) -> npt.NDArray[np.float32] | None:
    """Absolute n-step errors of the acting policy's own values, plus ``SMALLEST``: ``[T, B]``.

    The errors bootstrap inside the fragment from ``value``, at ends from ``final_value``, and at its edge
    from ``bootstrap_value`` with the steps it has. 0 where a step is not valid. None if the fragment has no
    ``action_value``: its policy doesn't know what its actions are worth.
    """
    columns = fragment.columns
    if ACTION_VALUE not in columns:
        return None
    error = n_step_returns(columns, gamma=gamma, n_step=n_step) - columns[ACTION_VALUE]
    priorities = (np.abs(error) + SMALLEST).astype(np.float32)
    if VALID in columns:
        priorities[~columns[VALID]] = 0.0
    return priorities
