"""What an actor chose."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.types import Array


class ActionBatch(NamedTuple):
    """What the policy chose for B lanes.

    ``action`` is what ``log_prob`` ``[B]`` belongs to and what is recorded; ``environment_action`` is what
    the environment gets: the same dict, or boxes clipped to their bounds. ``value`` ``[B]`` is in units
    of reward, and so is ``action_value`` ``[B]``, for a policy that knows what the action taken is worth.
    """

    action: dict[str, Array]
    environment_action: dict[str, Array]
    log_prob: npt.NDArray[np.float32]
    value: npt.NDArray[np.float32]
    action_value: npt.NDArray[np.float32] | None = None
