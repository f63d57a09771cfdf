"""What IMPALA and APPO share: a batch of older versions' experience, seen with the network as it is now."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headrace.config.algorithms import VtraceConfig
from headrace.nets.policy import Evaluation
from headrace.rl.on_policy import Experience, OnPolicyState, flat_rows, valid_rows
from headrace.rl.vtrace import Clips, vtrace
from headrace.types import (
    BEHAVIOR_LOG_PROB,
    BOOTSTRAP_OBSERVATION,
    BOOTSTRAP_VALUE,
    FINAL_OBSERVATION,
    FINAL_VALUE,
    REWARD,
    VALUE,
    Array,
    Batch,
    Columns,
    leaves_of,
)

_ROWS = 6


@dataclass(frozen=True, slots=True)
class CorrectedExperience(Experience):
    """Experience whose log_prob, value, advantage and target are those of the network that learns.

    ``scalars`` ``[6, N]`` has two more rows: log_ratio (log_prob minus behavior_log_prob) and weight, by
    which a step counts in the policy's gradient.
    """

    @property
    def log_ratio(self) -> Tensor:
        """``[N]``."""
        return self.scalars[4]

    @property
    def weight(self) -> Tensor:
        """``[N]``."""
        return self.scalars[5]

    def over(self, bar: float) -> float:
        """Share of the transitions whose importance ratio is above ``bar``; 0 if there are none."""
        return float((self.log_ratio > np.log(bar)).float().mean()) if self.size > 0 else 0.0


def corrected_experience(
    state: OnPolicyState, config: VtraceConfig, batch: Batch
) -> tuple[CorrectedExperience, Evaluation | None]:
    """V-trace of a batch by the network as it is now, and what that network said of the actions taken.

    The evaluation is the newest one, so it can be gone back from; None if no transition is valid. With
    ``normalize_value`` this batch's targets first join the running moments.
    """
    inputs, action = state.inputs_and_action(batch)
    if action.shape[1] == 0:
        return CorrectedExperience(inputs, action, action.new_zeros((_ROWS, 0))), None
    now = state.policy.evaluate(inputs, action)
    rows, shape = valid_rows(batch), batch.columns[REWARD].shape
    log_prob = _time_major(now.log_prob.cpu().numpy(), rows, shape)
    value = _time_major(state.in_reward_units(now.value), rows, shape)
    final_value, bootstrap_value = _values_after(state, batch.columns)
    own = {VALUE: value, FINAL_VALUE: final_value, BOOTSTRAP_VALUE: bootstrap_value}
    log_ratio = log_prob - batch.columns[BEHAVIOR_LOG_PROB]
    seen = vtrace(
        replace(batch, columns={**batch.columns, **own}),
        log_ratio,
        gamma=config.gamma,
        trace_lambda=config.gae_lambda,
        clips=Clips(config.rho_bar, config.c_bar, config.policy_rho_bar),
    )
    scale, shift = state.value_units(flat_rows(seen.target, rows))
    columns = [
        log_prob,
        seen.advantage,
        value * scale + shift,
        seen.target * scale + shift,
        log_ratio,
        seen.weight,
    ]
    scalars = np.stack([flat_rows(column, rows) for column in columns]).astype(np.float32)
    return CorrectedExperience(inputs, action, state.policy.tensor(scalars)), now


@torch.no_grad()
def _values_after(state: OnPolicyState, columns: Columns) -> tuple[Array, Array]:
    """Values of the final observations ``[K]`` and the bootstrap observations ``[B]``, in units of reward."""
    final = leaves_of(FINAL_OBSERVATION, columns)
    bootstrap = leaves_of(BOOTSTRAP_OBSERVATION, columns)
    together = {path: np.concatenate([final[path], leaf]) for path, leaf in bootstrap.items()}
    values = state.in_reward_units(state.policy.forward(state.policy.inputs(together))[1])
    num_final = len(next(iter(final.values())))
    return values[:num_final], values[num_final:]


def _time_major(flat: Array, rows: Array | None, shape: tuple[int, ...]) -> Array:
    """Inverse of :func:`headrace.rl.on_policy.flat_rows` for ``[N]``; 0 where a step is not valid."""
    spread = np.zeros(shape, flat.dtype)
    spread.reshape(-1)[slice(None) if rows is None else rows] = flat
    return spread
